// The planner of in-network aggregation: which part of a reduction the stations (threads of
// aggregators) fold, and which part the ranks fold as without them. A pure function of what all
// ranks know, in integers only, so that all of them compute the same numbers. Any thread.
//
// Fractions are in 1/65536 (kWhole is 1), times in 1/65536 of S/B: S = bytes of the vector, B = the
// rate of a worker's link, per direction.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mcast {

inline constexpr uint32_t kWhole = 65536;

// The setting `aggregate`.
enum class AggregateMode : uint8_t {
  kCareful,  // a reduce_scatter is planned for an all_gather beside it, but alone it must not take
             // more than 9/8 of its time without stations
  kBoth,     // it is planned for an all_gather beside it
  kOff,      // the ranks fold everything
};

// One of the setting's words.
constexpr AggregateMode aggregate_mode(std::string_view setting) noexcept {
  return setting == "both"  ? AggregateMode::kBoth
         : setting == "off" ? AggregateMode::kOff
                            : AggregateMode::kCareful;
}

// What the owner of a shard does with its own contribution to a segment that a station folds.
enum class OwnShard : uint8_t {
  kSent,    // sends it, and gets the final result: it belongs in the middle of the fold
  kKept,    // adds it to the partial result that it gets: exact types
  kEither,  // the order of the fold allows both with the same bits: the planner takes the faster
};

// In a tree: a rack, whose own stations (leaves) fold its contributions for the other stations.
struct PlacementRack {
  uint32_t contributors = 1;
  uint32_t leaves = 0;    // stations; none: its contributions go to the others
  uint64_t capacity = 0;  // of all leaves, in 1/65536 of a worker's link; not 0 if there are any
};

struct PlacementInput {
  bool scatter = false;       // reduce_scatter; otherwise all_reduce
  uint64_t bytes = 0;         // S: a rank's whole input, not its shard
  uint32_t members = 1;       // shards; at least 1
  uint32_t contributors = 1;  // to a segment: hosts. Each counts as one worker's link
  uint64_t segment = 1;       // bytes; at least 1
  uint32_t ratio = 1;         // bytes of an accumulator / bytes of an element
  uint32_t wide = 1;          // bytes of a contribution / bytes of the shard that it is for
  OwnShard own = OwnShard::kSent;
  AggregateMode mode = AggregateMode::kCareful;
  // Of the stations, in a tree of those at its top, in 1/65536 of a worker's link.
  std::vector<uint32_t> capacities;
  // A tree: all contributors by rack; `own` is kSent. Empty: none.
  std::vector<PlacementRack> racks;
};

enum class PlacementReason : uint8_t {
  kPlaced,
  kOff,
  kNoStations,
  kFewContributors,
  kSmall,
  kFewSegments,
  kSmallGain,
  kSlower,  // as measured (station_trial.h)
};
// For people: why the stations fold nothing, or "placed".
const char* placement_text(PlacementReason reason) noexcept;

// The least vector that stations fold, bytes, and the segments of a shard that each gets at least.
inline constexpr uint64_t kLeastAggregated = 1u << 20;
inline constexpr uint32_t kStationSegments = 4;

// What is planned. `planned`, `workers` and `served` are of an all_reduce, or of a reduce_scatter
// with an all_gather of as many bytes beside it, and bounds: of links, not of CPUs.
struct Placement {
  PlacementReason reason = PlacementReason::kPlaced;
  uint32_t part = 0;               // f: of each shard, folded at stations
  std::vector<uint32_t> stations;  // f dealt out by capacity; their sum is exactly `part`
  uint32_t owner = kWhole;         // the rest
  bool kept = false;               // the owner keeps its own contribution
  uint64_t planned = 0;            // time with the stations; `workers` where part is 0
  uint64_t workers = 0;            // time without
  uint64_t alone = 0;              // time of a reduce_scatter that nothing runs beside
  uint64_t served = 0;             // time of an all_reduce whose results the stations multicast
                                   // themselves, with the best part for that; else, and in a
                                   // tree, `workers`
};

Placement place(const PlacementInput& input);

}  // namespace mcast
