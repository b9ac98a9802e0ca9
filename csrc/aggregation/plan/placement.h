// The planner of in-network aggregation: the part of a reduction that the stations (threads of
// aggregators) fold; the ranks fold the rest as without stations. A pure function of facts that all
// ranks know, in integers only, so that all of them compute the same numbers. Any thread.
//
// Fractions are in 1/65536 (kWhole is 1), times in 1/65536 of S/B: S = bytes of the vector, B = the
// rate of a worker's link, per direction.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/aggregation_report.h"
#include "collective/agreed.h"

namespace mcast {

// Handling of the owner's contribution to a segment of its shard that a station folds.
enum class OwnShard : uint8_t {
  kSent,    // it is sent, and the final result returns: its place is in the middle of the fold
  kKept,    // it is added to the partial result that returns: exact types
  kEither,  // the order of the fold gives the same bits for both: the planner takes the faster
};

// A rack of a tree, whose own stations (leaves) fold its contributions for the other stations.
struct PlacementRack {
  uint32_t contributors = 1;
  uint32_t leaves = 0;    // stations; none: its contributions go to the other stations
  uint64_t capacity = 0;  // of all leaves, in 1/65536 of a worker's link; not 0 if there are leaves
};

struct PlacementInput {
  bool scatter = false;       // reduce_scatter; otherwise all_reduce
  uint64_t bytes = 0;         // S: a rank's whole input, not its shard
  uint32_t members = 1;       // shards; at least 1
  uint32_t contributors = 1;  // to a segment: hosts. Each counts as one worker's link
  uint64_t segment = 1;       // bytes; at least 1
  uint32_t ratio = 1;         // bytes of an accumulator / bytes of an element
  uint32_t wide = 1;          // bytes of a contribution / bytes of its shard
  OwnShard own = OwnShard::kSent;
  AggregateMode mode = AggregateMode::kCareful;
  // Capacities of the stations (in a tree, of those at its top), in 1/65536 of a worker's link.
  std::vector<uint32_t> capacities;
  // A tree: all contributors by rack; `own` is kSent. Empty: no tree.
  std::vector<PlacementRack> racks;
};

// Least bytes of a vector that stations fold; least segments of a shard per station.
inline constexpr uint64_t kLeastAggregated = 1u << 20;
inline constexpr uint32_t kStationSegments = 4;

Placement place(const PlacementInput& input);

}  // namespace mcast
