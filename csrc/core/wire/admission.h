// What the process of member 0 and an aggregator tell each other about one group, over a connection
// that lasts as long as the job: Ask, then Accept or Refuse (a guarded aggregator says a Challenge
// first); later Bye (the group has ended) or
// Draining (the aggregator is about to). Text records of at most kMaxAdmission bytes, framed as in
// wire/record_stream.h. A group of some 2,500 ranks fits.
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

// By a guarded aggregator, to who has just connected: what Ask and Accept have a MAC over, besides
// their own text (crypto/signed_text.h).
struct Challenge {
  std::string security;  // its mode
  std::string nonce;
  bool operator==(const Challenge&) const = default;
};

// Public key of a stream endpoint; zeros: it is not guarded.
using EndpointKey = std::array<std::byte, 32>;

struct Ask {
  std::string version;    // of torch_mcast
  uint32_t protocol = 0;  // of the wire
  std::string transport;
  uint64_t tag = 0;               // of the group
  std::string name;               // of the group, for people
  std::vector<uint64_t> uids;     // of lane 1's stream endpoints, by rank; one at least
  std::vector<uint32_t> host_of;  // by rank: which contribute together; numbers below the ranks'
  uint32_t chunk = 0;             // bytes
  uint64_t incast = 0;            // setting, bytes
  std::string fold;               // setting
  std::string aggregate;          // setting
  uint32_t roster = 0;            // version that the stations would be in
  uint64_t memory = 0;            // that the asker expects a station to need, bytes
  uint64_t link_rate = 0;         // setting, bits per second of a rank's link; 0: not told
  std::string rack;               // where the asked one is by the setting; empty: not told
  // Racks that ranks are in, by name; and by rank which: 1, 2, ..., or 0: in none of them. No rank
  // is in any: both are empty.
  std::vector<std::string> racks;
  std::vector<uint32_t> rack_of;
  // Of a guarded group: its mode, and by rank the keys of its lane 1; else both are empty.
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

// Line feeds in texts become blanks.
std::string encode(const Admission& record);
// kInvalidArgument, and which field is wrong, for anything that is none; `out` is then unspecified.
Status decode_admission(std::string_view text, Admission& out);
// Of an Ask of any version only `version`, `protocol` and `security`; none where `text` is no Ask.
Ask ask_heading(std::string_view text);

}  // namespace mcast::wire
