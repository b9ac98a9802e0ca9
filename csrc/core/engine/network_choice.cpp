// Pure; the check whether a network carries anything is handed in.
#include "engine/network_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/units.h"

namespace mcast {
namespace {

// One that all ranks have, and which address of each counts there.
struct Common {
  Ipv4Network network;
  std::vector<OwnAddress> by_rank;
  uint32_t speed = UINT32_MAX;
  size_t near = 0, route = 0;  // ranks

  bool leads_to_store() const { return route == by_rank.size(); }
};

std::optional<Common> common_of(const Ipv4Network& network, const std::vector<RankRecord>& records,
                                const std::vector<std::vector<OwnAddress>>& own) {
  Common common;
  common.network = network;
  std::map<uint32_t, std::string> host_of;  // by address
  for (size_t rank = 0; rank < own.size(); rank++) {
    const OwnAddress* const best = best_address(own[rank], network.text());
    if (best == nullptr) return std::nullopt;
    const auto [at, fresh] = host_of.emplace(best->address, records[rank].host);
    if (!fresh && at->second != records[rank].host) return std::nullopt;
    common.speed = std::min(common.speed, best->speed);
    common.near += best->near ? 1 : 0;
    common.route += best->route ? 1 : 0;
    common.by_rank.push_back(*best);
  }
  return common;
}

// Best first.
std::vector<Common> common_networks(const std::vector<RankRecord>& records,
                                    const std::vector<std::vector<OwnAddress>>& own) {
  std::vector<Common> all;
  std::set<std::string> seen;
  for (const OwnAddress& a : own[0]) {
    if (!seen.insert(a.network().text()).second) continue;
    if (auto common = common_of(a.network(), records, own)) all.push_back(std::move(*common));
  }
  const bool unknown = std::any_of(
      all.begin(), all.end(), [](const Common& c) { return c.leads_to_store() && c.speed == 0; });
  std::stable_sort(all.begin(), all.end(), [unknown](const Common& a, const Common& b) {
    const auto key = [unknown](const Common& c) {
      return std::tuple(unknown && c.leads_to_store(), unknown ? 0 : c.speed, c.near, c.route);
    };
    if (key(a) != key(b)) return key(a) > key(b);
    return a.network.address < b.network.address;
  });
  return all;
}

bool within(const Ipv4Network& network, const RankRecord& record) {
  const std::string& host = record.external.host;  // of a stripe the first one
  const auto at = parse_networks(host.substr(0, host.find('+')), 1);
  return at.ok() && !at->empty() && network.contains(at->front().address);
}

std::vector<FarAddress> far_of(const Common& common, const std::vector<RankRecord>& records) {
  std::vector<FarAddress> far;
  std::set<std::string> hosts{records[kConcluder].host};
  for (size_t rank = 0; rank < records.size(); rank++) {
    if (!hosts.insert(records[rank].host).second) continue;
    far.push_back({common.by_rank[rank].address, records[rank].external.port});
  }
  return far;
}

}  // namespace

std::string addresses_text(const std::vector<OwnAddress>& addresses) {
  std::string text;
  for (const OwnAddress& a : addresses) {
    text += (text.empty() ? "" : ",") + ipv4_text(a.address) + "/" + std::to_string(a.prefix) +
            "@" + std::to_string(a.speed) + (a.near ? "n" : "") + (a.route ? "r" : "");
  }
  return text;
}

std::vector<OwnAddress> parse_addresses(const std::string& text) {
  std::vector<OwnAddress> out;
  for (const std::string_view entry : split_at_commas(text)) {
    const size_t slash = std::min(entry.find('/'), entry.size());
    const size_t at = std::min(entry.find('@'), entry.size());
    if (slash >= at || at == entry.size()) continue;
    std::string_view speed = entry.substr(at + 1);
    OwnAddress a;
    a.route = !speed.empty() && speed.back() == 'r';
    if (a.route) speed.remove_suffix(1);
    a.near = !speed.empty() && speed.back() == 'n';
    if (a.near) speed.remove_suffix(1);
    const auto address = parse_networks(entry.substr(0, slash), 1);
    if (!address.ok() || address->empty() || address->front().prefix != 32 ||
        !read_number(entry.substr(slash + 1, at - slash - 1), a.prefix) || a.prefix > 32 ||
        !read_number(speed, a.speed)) {
      continue;
    }
    a.address = address->front().address;
    out.push_back(a);
  }
  return out;
}

const OwnAddress* best_address(const std::vector<OwnAddress>& own, const std::string& network) {
  const auto key = [](const OwnAddress& a) { return std::tuple(a.speed, a.near, a.route); };
  const OwnAddress* best = nullptr;
  for (const OwnAddress& a : own) {
    const bool fits =
        network.empty() || (network == kByRoute ? a.route : a.network().text() == network);
    if (fits && (best == nullptr || key(a) > key(*best))) best = &a;
  }
  return best;
}

const OwnAddress* first_guess(const std::vector<OwnAddress>& own, const std::string& last) {
  if (!last.empty()) {
    if (const OwnAddress* const same = best_address(own, last)) return same;
  }
  const OwnAddress* const route = best_address(own, kByRoute);
  return route != nullptr && route->speed == 0 ? route : best_address(own, "");
}

std::string choose_network(const std::vector<RankRecord>& records, const Reaches& reaches) {
  std::vector<std::vector<OwnAddress>> own;
  std::set<std::string> hosts;
  bool choice = false;
  for (const RankRecord& r : records) {
    hosts.insert(r.host);
    own.push_back(parse_addresses(r.place.addresses));
    if (own.back().empty()) return "";
    choice = choice || own.back().size() > 1;
  }
  if (hosts.size() < 2 || !choice) return "";
  for (const Common& common : common_networks(records, own)) {
    if (!common.leads_to_store() && !reaches(common.by_rank[0], far_of(common, records))) continue;
    const bool there = std::all_of(records.begin(), records.end(),
                                   [&](const RankRecord& r) { return within(common.network, r); });
    return there ? "" : common.network.text();
  }
  for (size_t rank = 0; rank < records.size(); rank++) {
    const OwnAddress* const route = best_address(own[rank], kByRoute);
    if (route != nullptr && ipv4_text(route->address) != records[rank].external.host) {
      return kByRoute;
    }
  }
  return "";
}

}  // namespace mcast
