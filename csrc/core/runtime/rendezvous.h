// Data that ranks exchange when a group is made, and rank 0's conclusion. Each rank publishes a
// record. Rank 0 reads them all and publishes a roster: the agreement, and the addresses of all
// ranks, in some 34 bytes per rank. Everything here is pure.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "collective/plan.h"
#include "transport/transport.h"

namespace mcast {

// Security data of a rank of a guarded group.
struct SecurityRecord {
  std::string mode;          // "auth", "sealed"
  uint8_t suites = 0;        // crypto::suite_bit() of the suites that its CPU accelerates
  std::string secret_check;  // JobSecret::make_check(); empty if it has no secret
  std::string job;           // name of the job whose keys it has
  std::array<std::byte, 32> nonce{};
  std::array<std::byte, 32> multicast{}, reduce{};  // X25519 keys of its lanes
  std::string shared_secret;                        // from rank 0 with trust_store, in hex
};

struct RankRecord {
  std::string version;    // of torch_mcast
  uint32_t protocol = 0;  // of the wire protocol
  std::string transport;  // name of the transport of the addresses below
  // Why a transport does not work on this rank, by its name; an empty text if it works. The first
  // transport has no entry.
  std::map<std::string, std::string> problems;
  std::string host;                                // same value = same kernel and network namespace
  std::string host_name;                           // for display
  StreamAddress external, loopback;                // of the multicast lane
  StreamAddress reduce_external, reduce_loopback;  // of the reduce lane
  struct {
    size_t external = 0, loopback = 0;  // bytes
  } datagram;                           // the largest
  size_t budget = 0;                    // receive budget, bytes
  uint64_t random = 0;                  // rank 0's determines the group tag
  std::string salt;                     // distinguishes jobs; rank 0's counts
  std::string agreed;                   // settings that must be equal
  std::string shared;  // HostAddress: where ranks of its host find its memory; empty if they cannot
  std::string network;  // why a group uses the network even on one host; empty if it need not
  struct {
    std::string rack;       // setting: rack of its host
    std::string interface;  // interface with the address `external`, for display
    std::string addresses;  // addresses_text(): addresses to choose from; empty: no choice
  } place;
  std::string fallback;                    // GroupSpec::fallback
  std::optional<SecurityRecord> security;  // none: off

  // Empty if this transport works here.
  std::string problem_of(const std::string& transport_name) const;
  std::string encode() const;
  static Result<RankRecord> decode(const std::string& text);
  // Version and protocol of this build.
  static RankRecord own_heading();
  // Only version and protocol, which records of all versions have. Empty if it has no protocol.
  static RankRecord heading(const std::string& text);
};

// Interfaces behind an address: a striped transport joins their addresses by '+'.
uint32_t stripes_of(const StreamAddress& address);

// The rank that reads all records and draws the conclusion.
inline constexpr Member kConcluder = 0;
// Name of the round in which ranks exchange their first records. A second one has its transport's
// name.
inline constexpr const char* kRecordsRound = "rank";
// The round after rank 0 has chosen another network.
inline constexpr const char* kNetworkRound = "network";
// Most multicast addresses that one job uses on each lane; further host sets share them (receivers
// filter by tag).
inline constexpr uint32_t kAddressesPerJob = 16;

// Ports of lane 0 at each of these addresses: one for each set of members that makes groups there.
inline constexpr uint32_t kPortsPerAddress = 5000;

// Chunks are multiples of this, so that they start on cache lines of an aligned tensor.
inline constexpr size_t kChunkUnit = 64;

struct Agreement {
  Agreed agreed;
  uint64_t tag = 0;
  MulticastAddress address;
  MulticastAddress reduce_address;   // the reduce lane's: another address and port
  Echo echo = Echo::kOn;             // on both lanes: off if no other rank shares this host
  std::vector<StreamAddress> peers;  // by rank: the address that this rank uses
  std::vector<StreamAddress> reduce_peers;
  // By rank: addresses that its datagrams are sent from.
  std::vector<StreamAddress> senders, reduce_senders;
  uint32_t hosts = 1;              // distinct hosts
  std::vector<uint32_t> host_of;   // by rank, numbered by their lowest rank
  std::vector<std::string> racks;  // by rank, one per host; empty if no rank is in a rack
};

// Rank 0's conclusion from all records.
struct Roster {
  std::string transport = kTransportNames[0];  // its name, and the reason
  std::string transport_reason;
  bool again = false;   // all ranks can use it and make endpoints now: another round of records
                        // follows, and nothing below counts
  std::string network;  // why a rank uses the network even on one host; empty if none does. With
                        // `again` and the same transport: choose_network()
  bool shared = false;  // all have published where ranks of their host find their memory
  bool hosts_known = true;  // different host values mean different hosts
  size_t datagram = 0;      // smallest of all, bytes, without the overhead of a guard
  size_t budget = 0;        // smallest of all, bytes
  uint64_t tag = 0;
  std::string salt;  // see JobSalt
  MulticastAddress address;
  uint64_t members = 0;  // hash of the members and their job; not published
  struct Rank {
    uint32_t host = 0;  // numbered by their lowest rank
    StreamAddress external, loopback, reduce_external, reduce_loopback;
    uint32_t rack = 0;  // 1, 2, ... of `racks`; 0: none
  };
  std::vector<Rank> ranks;
  std::vector<std::string> racks;  // racks that have ranks

  std::string encode() const;
  static Result<Roster> decode(const std::string& text);
};

// Rank 0's conclusion from the records; `records[i]` is rank i's. Fails with the values of both
// sides if ranks differ in something that must be equal. `part_index`: as in GroupSpec.
Result<Roster> conclude(const std::vector<RankRecord>& records, uint32_t part_index = 0);
// Ports of lane 0 for a set of members, by its Roster::members. `choice` 0 is the conclusion's;
// others are used if that one is taken.
uint16_t multicast_port(uint64_t members, uint32_t choice = 0);
// Whether two ranks have compatible versions at all.
Status same_version(const RankRecord& a, Member rank_a, const RankRecord& b, Member rank_b);
// The roster as rank `self` sees it. `link_sharers`: as in GroupSpec.
Agreement agreement_of(const Roster& roster, Member self, const Config& config,
                       uint32_t link_sharers = 1);

// Distinguishes jobs over the same hosts and is common to the groups of a job, so that these share
// multicast addresses. The environment may name the job; otherwise it is the random number of
// member 0 of the first group that a process makes, which usually contains all ranks. Not
// thread-safe.
class JobSalt {
 public:
  explicit JobSalt(uint64_t random) : salt_(std::to_string(random)) {}
  // The value to publish. `named`: the name from the environment, if any.
  std::string value(const std::string& named) const { return named.empty() ? salt_ : named; }
  // A group has been agreed on, with this salt of its member 0.
  void adopt(const std::string& salt) {
    if (!settled_) salt_ = salt;
    settled_ = true;
  }

 private:
  std::string salt_;
  bool settled_ = false;
};

}  // namespace mcast
