// Pure; the check whether a network carries anything is handed in.
#include "runtime/network_choice.h"

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
  IpNetwork network;
  std::vector<OwnAddress> by_rank;
  uint32_t speed = UINT32_MAX;
  size_t near = 0, route = 0;  // ranks

  bool leads_to_store() const { return route == by_rank.size(); }
};

std::optional<Common> common_of(const IpNetwork& network, const std::vector<RankRecord>& records,
                                const std::vector<std::vector<OwnAddress>>& own) {
  Common common;
  common.network = network;
  std::map<IpAddress, std::string> host_of;  // by address
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

bool within(const IpNetwork& network, const RankRecord& record) {
  const std::string& host = record.external.host;  // of a stripe the first one
  const auto at = IpAddress::parse(host.substr(0, host.find('+')));
  return at && network.contains(*at);
}

std::vector<Endpoint> far_of(const Common& common, const std::vector<RankRecord>& records) {
  std::vector<Endpoint> far;
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
    text += (text.empty() ? "" : ",") + a.address.text() + "/" + std::to_string(a.prefix) + "@" +
            std::to_string(a.speed) + (a.near ? "n" : "") + (a.route ? "r" : "");
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
    const auto address = IpAddress::parse(entry.substr(0, slash));
    if (!address || !read_number(entry.substr(slash + 1, at - slash - 1), a.prefix) ||
        a.prefix > IpNetwork::single(*address).prefix || !read_number(speed, a.speed)) {
      continue;
    }
    a.address = *address;
    out.push_back(a);
  }
  return out;
}

const OwnAddress* best_address(const std::vector<OwnAddress>& own, const std::string& network) {
  const bool by_route = network == kByRoute || network == kByRoute6;
  const auto key = [by_route](const OwnAddress& a) {
    return std::tuple(by_route && a.route, a.speed, a.near, a.route, a.address.is_v4());
  };
  const OwnAddress* best = nullptr;
  for (const OwnAddress& a : own) {
    const bool fits = network.empty() || (by_route ? a.address.is_v6() == (network == kByRoute6)
                                                   : a.network().text() == network);
    if (fits && (best == nullptr || key(a) > key(*best))) best = &a;
  }
  return best;
}

namespace {

// Returns the address by which the rank reaches the store; null if it is not known.
const OwnAddress* route_of(const std::vector<OwnAddress>& own) {
  for (const char* const way : {kByRoute, kByRoute6}) {
    const OwnAddress* const best = best_address(own, way);
    if (best != nullptr && best->route) return best;
  }
  return nullptr;
}

// Returns the IP version, as kByRoute or kByRoute6, that every rank has and that leads most of them
// to the store; null if there is none.
const char* common_version(const std::vector<std::vector<OwnAddress>>& own) {
  const char* found = nullptr;
  size_t most = 0;
  for (const char* const way : {kByRoute, kByRoute6}) {
    size_t leads = 0, has = 0;
    for (const auto& rank : own) {
      const OwnAddress* const best = best_address(rank, way);
      has += best != nullptr ? 1 : 0;
      leads += best != nullptr && best->route ? 1 : 0;
    }
    if (has < own.size() || (found != nullptr && leads <= most)) continue;
    found = way;
    most = leads;
  }
  return found;
}

}  // namespace

const OwnAddress* first_guess(const std::vector<OwnAddress>& own, const std::string& last) {
  if (!last.empty()) {
    if (const OwnAddress* const same = best_address(own, last)) return same;
  }
  const OwnAddress* const route = route_of(own);
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
  const char* const way = common_version(own);
  for (size_t rank = 0; way != nullptr && rank < records.size(); rank++) {
    const OwnAddress& its = *best_address(own[rank], way);
    const std::string& now = records[rank].external.host;
    const bool other_version = (now.find(':') != std::string::npos) != its.address.is_v6();
    if ((its.route || other_version) && its.address.text() != now) return way;
  }
  return "";
}

}  // namespace mcast
