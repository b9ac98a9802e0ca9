// The results of an experiment. Threads: immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "sim/network/fabric.h"
#include "sim/network/traffic.h"
#include "sim/world/schedules/schedule.h"

namespace mcast::sim {

// Times of one operation, counted from the call of the ranks that are not late.
struct OpTimes {
  Collective op = Collective::kBroadcast;
  Nanos time = 0;                       // until the last rank is done
  Nanos bound = 0;                      // lower bound of all operations of the experiment
  Nanos first_byte = 0, last_byte = 0;  // of data that arrives at any host
  std::vector<Nanos> per_rank;
};

// Totals of all links of one class and direction.
struct LinkClassResult {
  std::string name;                          // "leaf-spine up"
  LinkTraffic sum;                           // its peak is the highest of any link
  uint64_t links = 0, most = 0, middle = 0;  // bytes of the fullest link, and the median
  std::vector<uint64_t> bytes;               // by link
};

struct HottestLink {
  std::string name;  // "h17 down"
  uint64_t bytes = 0;
  double use = 0;  // share of the time during which it sends
};

// Frames sent by ranks: in total, and by the rank that sent most.
struct FrameCounts {
  uint64_t all = 0, most = 0;
  uint32_t rank = 0;
};

// Bytes and frames of one class that ranks sent: on their hosts' links, and frames of streams,
// including those to ranks of the same host.
struct RankSent {
  uint64_t bytes = 0, packets = 0, frames = 0;
};
using SentOfRank = std::array<RankSent, kTrafficClasses>;
// Totals of all ranks, and the rank with most bytes.
struct RanksSent {
  RankSent all, most;
  uint32_t rank = 0;
};

// Bytes held by ranks: the sum over ranks, and the most of any rank.
struct RankPeak {
  uint64_t all = 0, most = 0;
  uint32_t rank = 0;
};

// Most bytes that were queued. Values of ranks are only known for the engine.
struct Peaks {
  double port = 0;
  std::string port_name;  // the link
  RankPeak inbox;    // datagrams at a rank's socket, for its fullest socket, as sockets count them
  RankPeak staging;  // chunks of operations that the rank has not called yet
};

// Bytes of a rank's heap allocated by the engine: when its group is made, and the most after that.
struct RankState {
  uint32_t rank = 0;
  uint64_t idle = 0, peak = 0;
};
// Heap of the engine's ranks; 0: unknown. The control tree gives some ranks more to store: its
// root, its first inner rank, its last leaf; null: the tree has no such rank.
struct States {
  uint64_t idle = 0, peak = 0;  // the mean of all ranks; the most of any
  std::optional<RankState> top, inner, leaf;
};

// The part of the work that the planner assigns to aggregators.
struct Served {
  double part = 0;     // of each rank's block
  std::string reason;  // "placed", or why no part is assigned
};

// Bytes that ranks sent only because the group is guarded. Handshakes are counted for all
// connections, including those made before the operations.
struct GuardCost {
  uint64_t datagrams = 0, datagram_bytes = 0;
  uint64_t records = 0, record_bytes = 0;
  uint64_t handshakes = 0, handshake_bytes = 0;
};

struct AggregatorBytes {
  double up = 0, down = 0;  // of one aggregator's interfaces, the mean
  uint64_t most = 0;        // of any aggregator, in one direction
};

struct OpResult {
  std::string algorithm;
  std::vector<OpTimes> ops;
  std::vector<LinkClassResult> links;
  uint64_t fabric_bytes = 0;          // over all links, both directions
  double host_up = 0, host_down = 0;  // bytes of one host's interfaces, the mean
  AggregatorBytes aggregator;         // the same for aggregators, which do not count as hosts here
  AmountByClass sent{};               // sent by hosts
  std::array<RanksSent, kTrafficClasses> ranks_sent{};
  HottestLink hottest;

  FrameCounts frames;
  Peaks peaks;
  States states;
  std::map<std::string, uint64_t> counters;  // of the engine, summed over ranks
  std::optional<GuardCost> guard;            // only for guarded groups

  double bin = 0;                        // ns of a bin of the timeline
  std::vector<Timeline::Bins> timeline;  // by link class, as `links`
  uint64_t events = 0;
  uint64_t trace_hash = 0;

  // Time until the last operation is done.
  Nanos took() const;
};

// Fills in the values that a fabric knows: links, sums, the fullest link, and when data arrived
// (for operations that run concurrently, together). `start`: when accounts were reset;
// `aggregators`: hosts, in ascending order.
void account_fabric(const Fabric& fabric, Nanos start, OpResult* result,
                    const std::vector<HostId>& aggregators = {});
// Fills in the amounts that ranks sent. `by_rank`: their frames; the rest comes from the fabric's
// accounts, where `rank_of` gives the rank of an endpoint; kNone: not a rank's.
void account_ranks(const Fabric& fabric, const std::vector<uint32_t>& rank_of,
                   std::vector<SentOfRank> by_rank, OpResult* result);
// The sum and the maximum of one value per rank.
RankPeak peak_of(const std::vector<uint64_t>& by_rank);
// "h17 down", "leaf 3 to spine 2", "spine 2 to leaf 3"; planes after the first are named too.
std::string link_name(const Topology& topology, LinkId link);

}  // namespace mcast::sim
