// What an experiment found. Threads: immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "simulation/schedules/schedule.h"
#include "transport/sim/fabric.h"
#include "transport/sim/traffic.h"

namespace mcast::sim {

// Of one operation. Times count from when the ranks that are not late call it.
struct OpTimes {
  Collective op = Collective::kBroadcast;
  Nanos time = 0;                       // until the last rank is done
  Nanos bound = 0;                      // least time of all operations of the experiment
  Nanos first_byte = 0, last_byte = 0;  // data that arrives at any host
  std::vector<Nanos> per_rank;
};

// Of all links of one class and direction.
struct LinkClassResult {
  std::string name;                          // "leaf-spine up"
  LinkTraffic sum;                           // its peak is the highest
  uint64_t links = 0, most = 0, middle = 0;  // bytes of the fullest link, and the median
  std::vector<uint64_t> bytes;               // by link
};

struct HottestLink {
  std::string name;  // "h17 down"
  uint64_t bytes = 0;
  double use = 0;  // share of the time in which it sends
};

// Sent by ranks: of all, and of the rank that sent most.
struct FrameCounts {
  uint64_t all = 0, most = 0;
  uint32_t rank = 0;
};

// Of one class, sent by ranks: what is on their hosts' links, and frames of streams, also to ranks
// of the same host.
struct RankSent {
  uint64_t bytes = 0, packets = 0, frames = 0;
};
using SentOfRank = std::array<RankSent, kTrafficClasses>;
// Of all ranks, and of the one with most bytes.
struct RanksSent {
  RankSent all, most;
  uint32_t rank = 0;
};

// Bytes that a rank had: the sum over ranks, and the most of any.
struct RankPeak {
  uint64_t all = 0, most = 0;
  uint32_t rank = 0;
};

// Most bytes that waited. Of ranks: only of the engine's.
struct Peaks {
  double port = 0;
  std::string port_name;  // the link
  RankPeak inbox;    // datagrams at a socket of the rank, whichever had most, as sockets count them
  RankPeak staging;  // chunks of operations that the rank had not called yet
};

// Bytes of a rank's heap that the engine has, when its group is made and at most after that.
struct RankState {
  uint32_t rank = 0;
  uint64_t idle = 0, peak = 0;
};
// Of the engine; 0: unknown. Some ranks have more to keep, by their place in the group's control
// tree: its top, the first of those between, the last of those below; null: it has none such.
struct States {
  uint64_t idle = 0, peak = 0;  // the mean of all ranks; the most of any
  std::optional<RankState> top, inner, leaf;
};

// What the planner gives to aggregators.
struct Served {
  double part = 0;     // of each rank's block
  std::string reason;  // "placed", or why nothing
};

// What being guarded has cost ranks, in bytes that would not have been sent otherwise. Handshakes
// are those of all connections, also of those that were made before the operations.
struct GuardCost {
  uint64_t datagrams = 0, datagram_bytes = 0;
  uint64_t records = 0, record_bytes = 0;
  uint64_t handshakes = 0, handshake_bytes = 0;
};

struct AggregatorBytes {
  double up = 0, down = 0;  // of one's interfaces, the mean
  uint64_t most = 0;        // of any, one way
};

struct OpResult {
  std::string algorithm;
  std::vector<OpTimes> ops;
  std::vector<LinkClassResult> links;
  uint64_t fabric_bytes = 0;          // over all links, both ways
  double host_up = 0, host_down = 0;  // bytes of one host's interfaces, the mean
  AggregatorBytes aggregator;         // the same of those, which do not count as hosts there
  AmountByClass sent{};               // what hosts sent
  std::array<RanksSent, kTrafficClasses> ranks_sent{};
  HottestLink hottest;

  FrameCounts frames;
  Peaks peaks;
  States states;
  std::map<std::string, uint64_t> counters;  // sums over ranks, of the engine
  std::optional<GuardCost> guard;            // of guarded groups

  double bin = 0;                        // ns of a bin of the timeline
  std::vector<Timeline::Bins> timeline;  // by link class, as `links`
  uint64_t events = 0;
  uint64_t trace_hash = 0;

  // Until the last operation is done.
  Nanos took() const;
};

// Fills in what a fabric knows: links, sums, the fullest link, when data came (to operations that
// are carried out at once together). `start`: when accounts were reset; `aggregators`: hosts, in
// ascending order.
void account_fabric(const Fabric& fabric, Nanos start, OpResult* result,
                    const std::vector<HostId>& aggregators = {});
// Fills in what ranks sent. `by_rank`: their frames; the rest is of the fabric's accounts, where
// `rank_of` says whose an endpoint is; kNone: no rank's.
void account_ranks(const Fabric& fabric, const std::vector<uint32_t>& rank_of,
                   std::vector<SentOfRank> by_rank, OpResult* result);
// The same of one value for each rank.
RankPeak peak_of(const std::vector<uint64_t>& by_rank);
// "h17 down", "leaf 3 to spine 2", "spine 2 to leaf 3"; planes after the first are said.
std::string link_name(const Topology& topology, LinkId link);

}  // namespace mcast::sim
