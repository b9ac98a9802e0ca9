// Records are lines of key=value, readable in a store dump: each is read by few ranks. All ranks
// read the roster, so it is packed. Chunk size and budget are the smallest of all ranks. The
// multicast address is one of a few per job, chosen by hashing the set of hosts with the job's
// salt: groups over the same hosts share it, and other jobs almost certainly use another. If they
// do not, the random group tag separates them.
#include "runtime/rendezvous.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/errors.h"
#include "base/hex.h"
#include "base/host.h"
#include "base/ip_address.h"
#include "base/rng.h"
#include "base/units.h"
#include "base/version.h"
#include "wire/datagram.h"
#include "wire/guarded_datagram.h"
#include "wire/protocol_version.h"
#include "wire/text_record.h"

namespace mcast {
namespace {

constexpr size_t kBatchBytes = 64u << 10;  // of a super-packet

uint64_t hash_text(const std::string& text, uint64_t seed) {
  uint64_t h = seed ^ 0xcbf29ce484222325ULL;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix64(h);
}

// All but the first, which works everywhere.
std::span<const char* const> optional_transports() { return std::span(kTransportNames).subspan(1); }

std::string differ(const std::string& what, const std::string& a, Member self, const std::string& b,
                   size_t other) {
  return "ranks differ in " + what + ": rank " + std::to_string(self) + " has \"" + a +
         "\", rank " + std::to_string(other) + " has \"" + b + "\"";
}

}  // namespace

uint32_t stripes_of(const StreamAddress& address) {
  return 1 + static_cast<uint32_t>(std::count(address.host.begin(), address.host.end(), '+'));
}

std::string RankRecord::problem_of(const std::string& name) const {
  const auto it = problems.find(name);
  return it == problems.end() ? "" : it->second;
}

std::string RankRecord::encode() const {
  std::string out;
  const auto put = [&out](const char* key, const std::string& value) {
    wire::put_field(out, key, value);
  };
  put("version", version);
  put("protocol", std::to_string(protocol));
  put("transport", transport);
  for (const char* name : optional_transports()) put(name, problem_of(name));
  put("host", host);
  put("host_name", host_name);
  put("uid", std::to_string(external.uid));
  put("external", external.host);
  put("external_port", std::to_string(external.port));
  put("loopback", loopback.host);
  put("loopback_port", std::to_string(loopback.port));
  put("reduce_uid", std::to_string(reduce_external.uid));
  put("reduce_external", reduce_external.host);
  put("reduce_external_port", std::to_string(reduce_external.port));
  put("reduce_loopback", reduce_loopback.host);
  put("reduce_loopback_port", std::to_string(reduce_loopback.port));
  put("datagram_external", std::to_string(datagram.external));
  put("datagram_loopback", std::to_string(datagram.loopback));
  put("budget", std::to_string(budget));
  put("random", std::to_string(random));
  put("salt", salt);
  put("agreed", agreed);
  put("shared", shared);
  put("network", network);
  put("rack", place.rack);
  put("interface", place.interface);
  put("addresses", place.addresses);
  put("fallback", fallback);
  if (security) {
    put("security", security->mode);
    put("suites", std::to_string(security->suites));
    put("secret_check", security->secret_check);
    put("job", security->job);
    put("role", "rank");
    put("nonce", hex_text(security->nonce));
    put("x25519", hex_text(security->multicast));
    put("reduce_x25519", hex_text(security->reduce));
    if (!security->shared_secret.empty()) put("shared_secret", security->shared_secret);
  }
  return out;
}

RankRecord RankRecord::own_heading() {
  RankRecord r;
  r.version = mcast::version();
  r.protocol = kProtocolVersion;
  return r;
}

RankRecord RankRecord::heading(const std::string& text) {
  using wire::number;
  wire::Fields fields = wire::fields_of(text);
  RankRecord r;
  if (number(fields, "protocol", r.protocol)) r.version = fields["version"];
  return r;
}

Result<RankRecord> RankRecord::decode(const std::string& text) {
  using wire::number;
  wire::Fields fields = wire::fields_of(text);
  RankRecord r;
  uint64_t uid = 0, reduce_uid = 0;
  uint16_t port = 0, loopback_port = 0, reduce_port = 0, reduce_loopback_port = 0;
  // (Code that takes the text for a C string would stop at a zero byte and read another text.)
  if (text.find('\0') != std::string::npos || !number(fields, "protocol", r.protocol) ||
      !number(fields, "uid", uid) || !number(fields, "external_port", port) ||
      !number(fields, "loopback_port", loopback_port) ||
      !number(fields, "reduce_uid", reduce_uid) ||
      !number(fields, "reduce_external_port", reduce_port) ||
      !number(fields, "reduce_loopback_port", reduce_loopback_port) ||
      !number(fields, "datagram_external", r.datagram.external, UINT32_MAX) ||
      !number(fields, "datagram_loopback", r.datagram.loopback, UINT32_MAX) ||
      !number(fields, "budget", r.budget) || !number(fields, "random", r.random)) {
    return Status(Code::kMismatch,
                  "its rendezvous record cannot be read; all ranks must use backend mcast of the "
                  "same version");
  }
  r.version = fields["version"];
  r.transport = fields["transport"];
  for (const char* name : optional_transports()) r.problems[name] = fields[name];
  r.host = fields["host"];
  r.host_name = fields["host_name"];
  r.external = {uid, fields["external"], port};
  r.loopback = {uid, fields["loopback"], loopback_port};
  r.reduce_external = {reduce_uid, fields["reduce_external"], reduce_port};
  r.reduce_loopback = {reduce_uid, fields["reduce_loopback"], reduce_loopback_port};
  r.salt = fields["salt"];
  r.agreed = fields["agreed"];
  r.shared = fields["shared"];
  r.network = fields["network"];
  r.place.rack = fields["rack"];
  r.place.interface = fields["interface"];
  r.place.addresses = fields["addresses"];
  r.fallback = fields["fallback"];
  if (const std::string mode = fields["security"]; !mode.empty()) {
    SecurityRecord& s = r.security.emplace();
    s.mode = mode;
    s.secret_check = fields["secret_check"];
    s.job = fields["job"];
    s.shared_secret = fields["shared_secret"];
    if (!number(fields, "suites", s.suites) || !from_hex(fields["nonce"], s.nonce) ||
        !from_hex(fields["x25519"], s.multicast) || !from_hex(fields["reduce_x25519"], s.reduce)) {
      return Status(Code::kMismatch,
                    "the security part of its rendezvous record cannot be read; all ranks must "
                    "use backend mcast of the same version");
    }
  }
  return r;
}

Status same_version(const RankRecord& a, Member rank_a, const RankRecord& b, Member rank_b) {
  if (a.protocol == b.protocol && a.version == b.version) return {};
  // Between releases, builds of the same version may differ.
  const auto text = [builds = a.version == b.version](const RankRecord& r) {
    return builds ? r.version + ", protocol " + std::to_string(r.protocol) : r.version;
  };
  return Status(Code::kMismatch,
                error_text<ErrorId::version_differs>(rank_a, text(a), rank_b, text(b)) +
                    "; install the same on all hosts");
}

namespace {

// Whether two lists "cpu=gloo,cuda=nccl" agree about each device that is in both.
bool same_fallback(std::string_view a, std::string_view b) {
  const auto all_of = [](const std::vector<std::string_view>& list, const auto& look) {
    return std::all_of(list.begin(), list.end(), look);
  };
  const auto ours = split_at_commas(a), theirs = split_at_commas(b);
  return all_of(ours, [&](std::string_view one) {
    return all_of(theirs, [&](std::string_view other) {
      return one == other ||
             one.substr(0, one.find('=') + 1) != other.substr(0, other.find('=') + 1);
    });
  });
}

Status compare(const RankRecord& mine, const RankRecord& r, Member rank) {
  if (Status status = same_version(mine, kConcluder, r, rank); !status.ok()) return status;
  if (r.transport != mine.transport) {
    return Status(Code::kMismatch,
                  differ("transport", mine.transport, kConcluder, r.transport, rank));
  }
  for (const auto& [what, here, there] :
       {std::tuple{"multicast", &mine.external, &r.external},
        std::tuple{"reduce", &mine.reduce_external, &r.reduce_external}}) {
    if (stripes_of(*here) == stripes_of(*there)) continue;
    return Status(Code::kMismatch,
                  std::string("ranks differ in the number of interfaces that the ") + what +
                      " lane is striped over: rank " + std::to_string(kConcluder) + " has " +
                      std::to_string(stripes_of(*here)) + " (" + here->host + "), rank " +
                      std::to_string(rank) + " has " + std::to_string(stripes_of(*there)) + " (" +
                      there->host + "); see MCAST_SOCKET_IFNAME");
  }
  if (!same_fallback(mine.fallback, r.fallback)) {
    return Status(
        Code::kMismatch,
        differ("fallback", mine.fallback, kConcluder, r.fallback, rank) +
            "; give all ranks the same Options(fallback=...) and the same build of torch");
  }
  if (r.agreed != mine.agreed) {
    return Status(Code::kMismatch,
                  error_text<ErrorId::settings_differ>(kConcluder, mine.agreed, rank, r.agreed) +
                      "; give all ranks the same Options and MCAST_* variables");
  }
  return {};
}

// The ranks' racks, by name and by number. Fails if ranks of one host are in two racks.
Status note_racks(const std::vector<RankRecord>& records, Roster& out) {
  std::map<uint32_t, size_t> lowest;  // rank, by host
  for (size_t i = 0; i < records.size(); i++) {
    const std::string& rack = records[i].place.rack;
    const size_t other = lowest.emplace(out.ranks[i].host, i).first->second;
    if (records[other].place.rack != rack) {
      return Status(Code::kMismatch,
                    differ("the rack of host " + records[i].host_name, records[other].place.rack,
                           static_cast<Member>(other), rack, i) +
                        "; give all ranks of a host the same MCAST_RACK");
    }
    if (rack.empty()) continue;
    const auto at = std::find(out.racks.begin(), out.racks.end(), rack);
    out.ranks[i].rack = static_cast<uint32_t>(at - out.racks.begin()) + 1;
    if (at == out.racks.end()) out.racks.push_back(rack);
  }
  return {};
}

std::string place_text(const RankRecord& r, size_t rank) {
  return "rank " + std::to_string(rank) + " on host " + r.host_name + " has " + r.external.host +
         (r.place.interface.empty() ? "" : " (interface " + r.place.interface + ")");
}

// Ranks reach each other over one version of IP.
Status compare_versions(const std::vector<RankRecord>& records) {
  const auto is_v6 = [](const RankRecord& r) {
    return r.external.host.find(':') < r.external.host.find('+');
  };
  for (size_t rank = 1; rank < records.size(); rank++) {
    const RankRecord& r = records[rank];
    if (is_v6(r) == is_v6(records[0])) continue;
    const size_t v6 = is_v6(r) ? rank : 0, v4 = rank - v6;
    return Status(Code::kMismatch,
                  place_text(records[v4], v4) + ", which is an IPv4 address, and " +
                      place_text(records[v6], v6) +
                      ", which is an IPv6 address: all ranks of a group must use the same version; "
                      "give each host an address of the same version, and name its network in "
                      "MCAST_SOCKET_IFNAME if there are several");
  }
  return {};
}

// Between hosts an address must be one that the others can reach, and its rank's host's alone. (Not
// those of simulated hosts, which are no numbers.)
Status tell_hosts_apart(const std::vector<RankRecord>& records) {
  static constexpr const char* kHint =
      "; set MCAST_SOCKET_IFNAME to an interface, or to a network on which each host has its own "
      "address";
  std::map<std::string, size_t> first;  // rank, by address
  for (size_t rank = 0; rank < records.size(); rank++) {
    const RankRecord& r = records[rank];
    const auto other = std::find_if(records.begin(), records.end(), [&](const RankRecord& o) {
      return o.host != r.host && host_known(o.host) && host_known(r.host);
    });
    if (other == records.end()) return {};
    const auto number = IpAddress::parse(r.external.host.substr(0, r.external.host.find('+')));
    if (!number) continue;
    if (number->loopback()) {
      return Status(Code::kUnavailable,
                    place_text(r, rank) + ", which is loopback: " +
                        place_text(*other, static_cast<size_t>(other - records.begin())) +
                        " and cannot reach it" + kHint);
    }
    const auto [at, fresh] = first.emplace(r.external.host, rank);
    if (fresh || records[at->second].host == r.host || !host_known(records[at->second].host)) {
      continue;
    }
    return Status(Code::kUnavailable, place_text(records[at->second], at->second) + ", and " +
                                          place_text(r, rank) + ": the same address on two hosts" +
                                          kHint);
  }
  return {};
}

constexpr uint32_t kSecondOctets = 254;  // 1 .. 254

// The hosts determine the address, because switches filter by it and keep an entry for each. The
// members determine the port: a socket then queues only datagrams of its own groups, whose windows
// are derived from its buffer.
void choose_address(const std::set<std::string>& hosts, const std::map<uint64_t, size_t>& uids,
                    uint32_t part_index, Roster& roster) {
  uint64_t host_set = hash_text("hosts", 1);
  for (const std::string& h : hosts) host_set = hash_text(h, host_set);
  const uint64_t job = hash_text(roster.salt, 2);
  uint64_t members = 0;
  for (const auto& [uid, rank] : uids) members = mix64(members ^ uid);
  const uint64_t base = job + (host_set + part_index) % kAddressesPerJob;
  roster.members = mix64(job ^ members);
  // 239.1.0.0 - 239.254.255.255; of IPv6 the same 24 bits (transport/udp/datagram_sender.cpp).
  MulticastAddress& address = roster.address;
  address.group = static_cast<uint32_t>((1 + base % kSecondOctets) << 16 | (base >> 16 & 0xffff));
  address.port = multicast_port(roster.members);
  address.loopback = hosts.size() == 1;
}

// The address of the reduce lane. It differs, because a host that leaves a flooded address still
// gets the flood while another of its sockets is a member there. Ethernet has seven bits of the
// second octet: in these bits, too, it differs from the job's other lane.
MulticastAddress beside(const MulticastAddress& address) {
  const uint32_t second = ((address.group >> 16) - 1 + kSecondOctets / 4) % kSecondOctets + 1;
  MulticastAddress other = address;
  other.group = second << 16 | (address.group & 0xffff);
  other.port++;
  return other;
}

// A longer queue delays everything else for the same host, such as grants, until the other
// direction of the link stalls; it does not help the credit loop.
constexpr uint64_t kMostQueueMs = 30;

size_t port_queue_of(const Config& config) {
  if (config.link_rate == 0) return config.port_queue;
  const uint64_t most = config.link_rate / 8 * kMostQueueMs / 1000;
  return std::min(config.port_queue, std::max<uint64_t>(most, 64 << 10));
}

}  // namespace

// Below the ephemeral range.
uint16_t multicast_port(uint64_t members, uint32_t choice) {
  return static_cast<uint16_t>(20000 + (members + choice) % kPortsPerAddress * 2);
}

Result<Roster> conclude(const std::vector<RankRecord>& records, uint32_t part_index) {
  const RankRecord& first = records[kConcluder];
  std::set<std::string> hosts;
  std::map<std::string, uint32_t> numbers;
  std::map<uint64_t, size_t> uids;  // of a process -> its rank
  Roster out;
  out.shared = true;
  for (size_t i = 0; i < records.size(); i++) {
    const RankRecord& r = records[i];
    if (Status status = compare(first, r, static_cast<Member>(i)); !status.ok()) return status;
    if (const auto [it, fresh] = uids.emplace(r.external.uid, i); !fresh) {
      return Status(Code::kInvalidArgument, "ranks " + std::to_string(it->second) + " and " +
                                                std::to_string(i) + " are in one process of host " +
                                                r.host_name + "; start one process per rank");
    }
    hosts.insert(r.host);
    out.hosts_known = out.hosts_known && host_known(r.host);
    out.shared = out.shared && !r.shared.empty();
    if (out.network.empty()) out.network = r.network;
    const uint32_t host =
        numbers.emplace(r.host, static_cast<uint32_t>(numbers.size())).first->second;
    out.ranks.push_back({host, r.external, r.loopback, r.reduce_external, r.reduce_loopback});
  }
  if (Status status = note_racks(records, out); !status.ok()) return status;
  if (Status status = compare_versions(records); !status.ok()) return status;
  if (Status status = tell_hosts_apart(records); !status.ok()) return status;
  out.salt = first.salt;
  choose_address(hosts, uids, part_index, out);
  const RankRecord* narrowest = nullptr;
  out.datagram = out.budget = SIZE_MAX;
  for (const RankRecord& r : records) {
    const size_t largest = out.address.loopback ? r.datagram.loopback : r.datagram.external;
    if (largest < out.datagram) narrowest = &r;
    out.datagram = std::min(out.datagram, largest);
    out.budget = std::min(out.budget, r.budget);
  }
  const size_t smaller = first.security ? wire::kGuardedExtra : 0;
  if (out.datagram < wire::kDatagramHeader + kChunkUnit + smaller) {
    return Status(Code::kUnavailable,
                  "rank " + std::to_string(narrowest - records.data()) + " on host " +
                      narrowest->host_name + " can send datagrams of " +
                      std::to_string(out.datagram) +
                      " bytes only: no room for a chunk of 64 bytes; see ip link there, and "
                      "MCAST_MAX_MTU");
  }
  out.datagram -= smaller;
  out.tag = mix64(first.random ^ 0x6d63617374ULL);
  return out;
}

Agreement agreement_of(const Roster& roster, Member self, const Config& config,
                       uint32_t link_sharers) {
  const Roster::Rank& mine = roster.ranks[self];
  const bool loopback = roster.address.loopback;
  Agreement out;
  uint32_t here = 0;  // number of ranks on this host
  const size_t ranks = roster.ranks.size();
  for (auto* const addresses : {&out.peers, &out.reduce_peers, &out.senders, &out.reduce_senders}) {
    addresses->reserve(ranks);
  }
  for (const Roster::Rank& r : roster.ranks) {
    const bool near = r.host == mine.host;
    here += near ? 1 : 0;
    out.hosts = std::max(out.hosts, r.host + 1);
    out.host_of.push_back(r.host);
    if (!roster.racks.empty()) out.racks.push_back(r.rack == 0 ? "" : roster.racks[r.rack - 1]);
    out.peers.push_back(near ? r.loopback : r.external);
    out.reduce_peers.push_back(near ? r.reduce_loopback : r.reduce_external);
    out.senders.push_back(loopback ? r.loopback : r.external);
    out.reduce_senders.push_back(loopback ? r.reduce_loopback : r.reduce_external);
  }
  size_t chunk = (roster.datagram - wire::kDatagramHeader) / kChunkUnit * kChunkUnit;
  if (config.chunk != 0) chunk = std::min<size_t>(chunk, config.chunk);
  out.agreed.members = static_cast<uint32_t>(ranks);
  out.agreed.chunk = chunk;
  out.agreed.guard = config.security == "off" ? 0 : wire::kGuardedExtra;
  out.agreed.source_auth = config.source_auth != 0;
  out.agreed.budget = roster.budget;
  out.agreed.batch = kBatchBytes;
  out.agreed.eager = config.eager;
  out.agreed.staging = config.staging;
  out.agreed.window = config.window;
  out.agreed.chains = static_cast<uint32_t>(config.chains);
  out.agreed.incast = config.incast;
  out.agreed.fold = fold_order(config.fold);
  out.agreed.aggregate = aggregate_mode(config.aggregate);
  out.agreed.port_queue = port_queue_of(config);
  out.agreed.reorder = static_cast<uint32_t>(config.reorder);
  out.agreed.share = link_sharers;
  out.agreed.stripes = loopback ? 1 : stripes_of(mine.external);
  out.address = roster.address;
  out.echo = here > 1 || !roster.hosts_known ? Echo::kOn : Echo::kOff;
  out.reduce_address = beside(out.address);
  out.tag = roster.tag;
  return out;
}

}  // namespace mcast
