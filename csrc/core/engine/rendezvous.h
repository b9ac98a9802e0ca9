// What ranks tell each other when a group is made, and what follows from it. Each publishes a
// record; rank 0 reads them all, concludes, and publishes a roster: what counts, and where
// everybody is, in some 34 bytes per rank. All this is pure.
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

// What a rank of a guarded group says about that.
struct SecurityRecord {
  std::string mode;          // "auth", "sealed"
  uint8_t suites = 0;        // crypto::suite_bit() of those that its CPU does fast
  std::string secret_check;  // JobSecret::make_check(); empty: it has none
  std::string job;           // name of its job, whose keys it has
  std::array<std::byte, 32> nonce{};
  std::array<std::byte, 32> multicast{}, reduce{};  // X25519 keys of its lanes
  std::string shared_secret;                        // of rank 0 with trust_store, in hex
};

struct RankRecord {
  std::string version;    // of torch_mcast
  uint32_t protocol = 0;  // of the wire
  std::string transport;  // its name: of the addresses below
  // Why a transport does not work on this rank, by its name; without a text: it does. None for the
  // first transport.
  std::map<std::string, std::string> problems;
  std::string host;                                // same value = same kernel and network namespace
  std::string host_name;                           // for people
  StreamAddress external, loopback;                // of the multicast lane
  StreamAddress reduce_external, reduce_loopback;  // of the reduce lane
  struct {
    size_t external = 0, loopback = 0;  // bytes
  } datagram;                           // the largest
  size_t budget = 0;                    // receive budget, bytes
  uint64_t random = 0;                  // rank 0's makes the group tag
  std::string salt;                     // tells jobs apart; rank 0's counts
  std::string agreed;                   // settings that must be equal
  std::string shared;   // HostAddress: where ranks of its host find its memory; empty: they cannot
  std::string network;  // why a group takes the network even if all are on its host; empty: it need
                        // not
  struct {
    std::string rack;       // setting: of its host
    std::string interface;  // that has the address `external`, for people
    std::string addresses;  // addresses_text(): among which it may choose; empty: it may not
  } place;
  std::string fallback;                    // GroupSpec::fallback
  std::optional<SecurityRecord> security;  // none: off

  // Empty: this transport works here.
  std::string problem_of(const std::string& transport_name) const;
  std::string encode() const;
  static Result<RankRecord> decode(const std::string& text);
  // Version and protocol of this build.
  static RankRecord own_heading();
  // Only version and protocol, which every version's records have; none, if it has no protocol.
  static RankRecord heading(const std::string& text);
};

// Interfaces behind an address: a striped transport joins their addresses by '+'.
uint32_t stripes_of(const StreamAddress& address);

inline constexpr uint32_t kProtocolVersion = 16;
// The rank that reads all records and draws the conclusion.
inline constexpr Member kConcluder = 0;
// The round in which ranks exchange their first records; a second is called as its transport.
inline constexpr const char* kRecordsRound = "rank";
// The round after rank 0 has chosen another network.
inline constexpr const char* kNetworkRound = "network";
// Multicast addresses that one job uses at most on each lane; host sets beyond share them (the tag
// filters).
inline constexpr uint32_t kAddressesPerJob = 16;

// Ports of lane 0 at each of them: one for each set of members that makes groups there.
inline constexpr uint32_t kPortsPerAddress = 5000;

// Chunks are multiples of it: they then start on cache lines of an aligned tensor.
inline constexpr size_t kChunkUnit = 64;

struct Agreement {
  Agreed agreed;
  uint64_t tag = 0;
  MulticastAddress address;
  MulticastAddress reduce_address;   // the reduce lane's: another address and port
  Echo echo = Echo::kOn;             // on both lanes: off where no other rank shares this host
  std::vector<StreamAddress> peers;  // by rank, as this rank reaches them
  std::vector<StreamAddress> reduce_peers;
  // By rank: whose datagrams come from the addresses of these.
  std::vector<StreamAddress> senders, reduce_senders;
  uint32_t hosts = 1;              // distinct hosts
  std::vector<uint32_t> host_of;   // by rank, numbered by their lowest rank
  std::vector<std::string> racks;  // by rank, ranks of one host in one; empty: no rank is in any
};

// Rank 0's conclusion from all records.
struct Roster {
  std::string transport = kTransportNames[0];  // its name, and why this one
  std::string transport_reason;
  bool again = false;       // all ranks can use it and make endpoints now: a second round of
                            // records follows, nothing below counts
  std::string network;      // why a rank takes the network even on one host; empty: none does.
                            // With `again` and the transport of this round: choose_network()
  bool shared = false;      // all have told where ranks of their host find their memory
  bool hosts_known = true;  // two hosts that differ are not the same
  size_t datagram = 0;      // the least of all, bytes, less what a guarded one is longer
  size_t budget = 0;        // the least of all, bytes
  uint64_t tag = 0;
  std::string salt;  // see JobSalt
  MulticastAddress address;
  uint64_t members = 0;  // hash of who they are and of their job; not published
  struct Rank {
    uint32_t host = 0;  // numbered by their lowest rank
    StreamAddress external, loopback, reduce_external, reduce_loopback;
    uint32_t rack = 0;  // 1, 2, ... of `racks`; 0: none
  };
  std::vector<Rank> ranks;
  std::vector<std::string> racks;  // that ranks are in

  std::string encode() const;
  static Result<Roster> decode(const std::string& text);
};

// What rank 0 makes of the records, `records[i]` being rank i's. Fails with both sides' values
// where ranks differ in what must be equal. `part_index`: as in GroupSpec.
Result<Roster> conclude(const std::vector<RankRecord>& records, uint32_t part_index = 0);
// Ports of lane 0 that a set of members may have, by its Roster::members; `choice` 0 is the
// conclusion's, further ones are for where that is taken.
uint16_t multicast_port(uint64_t members, uint32_t choice = 0);
// Whether two ranks speak the same language at all.
Status same_version(const RankRecord& a, Member rank_a, const RankRecord& b, Member rank_b);
// The roster as rank `self` sees it. `link_sharers`: as in GroupSpec.
Agreement agreement_of(const Roster& roster, Member self, const Config& config,
                       uint32_t link_sharers = 1);

// What jobs over the same hosts differ in and the groups of a job have in common, so that these
// share multicast addresses. The environment may name the job; else it is the random number of
// member 0 of the first group that a process makes, which is usually the one of all ranks. Not
// thread-safe.
class JobSalt {
 public:
  explicit JobSalt(uint64_t random) : salt_(std::to_string(random)) {}
  // To be published; `named`: what the environment says, maybe nothing.
  std::string value(const std::string& named) const { return named.empty() ? salt_ : named; }
  // A group has been agreed on, by the salt of its member 0.
  void adopt(const std::string& salt) {
    if (!settled_) salt_ = salt;
    settled_ = true;
  }

 private:
  std::string salt_;
  bool settled_ = false;
};

}  // namespace mcast
