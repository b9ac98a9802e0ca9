// Records between the process of member 0 and an aggregator about one group, over a connection that
// lasts as long as the job: Ask, then Accept or Refuse (a guarded aggregator sends a Challenge
// first); later Bye (the group has ended) or Draining (the aggregator is about to end). Text
// records of at most kMaxAdmission bytes, framed as in wire/record_stream.h. A group of some 2,500
// ranks fits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace mcast::wire {

inline constexpr size_t kMaxAdmission = 64 * 1024;
inline constexpr uint32_t kMaxAdmissionRanks = 4096;

// Sent by a guarded aggregator to a new connection: the data that the MACs of Ask and Accept cover,
// besides their own text (crypto/signed_text.h).
struct Challenge {
  std::string security;  // its mode
  std::string nonce;
  bool operator==(const Challenge&) const = default;
};

// Public key of a stream endpoint; zeros: not guarded.
using EndpointKey = std::array<std::byte, 32>;

struct Ask {
  std::string version;    // of torch_mcast
  uint32_t protocol = 0;  // of the wire
  std::string transport;
  uint64_t tag = 0;            // of the group
  std::string name;            // of the group, for people
  std::vector<uint64_t> uids;  // of lane 1's stream endpoints, by rank; one at least
  // By rank: host with which it contributes; numbers below the ranks'.
  std::vector<uint32_t> host_of;
  uint32_t chunk = 0;      // bytes
  uint64_t incast = 0;     // setting, bytes
  std::string fold;        // setting
  std::string aggregate;   // setting
  uint32_t roster = 0;     // version that would contain the stations
  uint64_t memory = 0;     // that a station is expected to need, bytes
  uint64_t link_rate = 0;  // setting, bits per second of a rank's link; 0: not sent
  // Rack of the aggregator according to the setting; empty: not sent.
  std::string rack;
  // Names of the ranks' racks; and each rank's rack: 1, 2, ..., or 0: none. If no rank is in a
  // rack, both are empty.
  std::vector<std::string> racks;
  std::vector<uint32_t> rack_of;
  // For a guarded group: its mode, and by rank the keys of its lane 1; else both are empty.
  std::string security;
  std::vector<EndpointKey> keys;
  bool operator==(const Ask&) const = default;
};

struct Accept {
  struct Station {
    uint64_t uid = 0;  // of its stream endpoint
    std::string host;  // its address, without blanks
    uint16_t port = 0;
    uint32_t capacity = 0;  // 1/65536 of a rank's link
    EndpointKey key{};
    bool operator==(const Station&) const = default;
  };
  uint64_t process = 0;           // uid of the aggregator's process
  uint64_t quota = 0;             // bytes reserved for the job
  uint32_t mtu = 0;               // bytes
  std::vector<Station> stations;  // one to kMostStations (wire/aggregation.h)
  bool operator==(const Accept&) const = default;
};

struct Refuse {
  std::string code;  // stable, for programs: "version", "quota", "jobs", ...
  std::string text;  // for people
  bool operator==(const Refuse&) const = default;
};

struct Bye {
  bool operator==(const Bye&) const = default;
};
struct Draining {
  bool operator==(const Draining&) const = default;
};

using Admission = std::variant<Ask, Accept, Refuse, Bye, Draining, Challenge>;

// Replaces line feeds in texts by blanks.
std::string encode(const Admission& record);
// Returns kInvalidArgument with the wrong field for anything else; `out` is then unspecified.
Status decode_admission(std::string_view text, Admission& out);
// Only `version`, `protocol` and `security` of an Ask of any version; empty if `text` is not an
// Ask.
Ask ask_heading(std::string_view text);

}  // namespace mcast::wire
