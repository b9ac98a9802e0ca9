// Report on a group's reductions for users: the planner's latest decisions, the ranks that stations
// wait for, and the operations that ended without late ranks. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "wire/descriptor.h"

namespace mcast {

// 1, where fractions are in 1/65536.
inline constexpr uint32_t kWhole = 65536;

enum class PlacementReason : uint8_t {
  kPlaced,
  kOff,
  kNoStations,
  kFewContributors,
  kSmall,
  kFewSegments,
  kSmallGain,
  kSlower,  // measured to be slower (station_trial.h)
};
// Text for people: why the stations fold nothing, or "placed".
const char* placement_text(PlacementReason reason) noexcept;

// The planner's result (aggregation/plan/placement.h). Times are in 1/65536 of S/B: S = bytes of
// the vector, B = the rate of a worker's link, per direction. `planned`, `workers` and `served` are
// bounds for an all_reduce, or for a reduce_scatter with a concurrent all_gather of as many bytes;
// they consider links, not CPUs.
struct Placement {
  PlacementReason reason = PlacementReason::kPlaced;
  uint32_t part = 0;               // f: part of each shard that stations fold
  std::vector<uint32_t> stations;  // f divided by capacity; their sum is exactly `part`
  uint32_t owner = kWhole;         // the rest
  bool kept = false;               // the owner keeps its own contribution
  uint64_t planned = 0;            // time with the stations; `workers` if part is 0
  uint64_t workers = 0;            // time without stations
  uint64_t alone = 0;              // time of a reduce_scatter without a concurrent operation
  uint64_t served = 0;             // time of an all_reduce whose results the stations multicast
                                   // themselves, with the best part for that; else, and in a
                                   // tree, `workers`
};

struct AggregationReport {
  struct Station {
    std::string address;    // for display
    uint32_t capacity = 0;  // 1/65536 of a rank's link
    bool lost = false;      // before the operation started: ranks fold its part
  };
  // The planner's decision for the latest large operation of a kind (all_reduce or reduce_scatter).
  struct Plan {
    wire::Kind kind = wire::Kind::kAllreduce;
    Sequence sequence = 0;
    uint64_t bytes = 0;  // of one rank's whole input
    Placement placement;
    std::vector<Station> stations;  // as in placement.stations
    // Top member only: measured time of such operations with and without stations. 0: not measured.
    uint64_t with = 0, without = 0;  // ns
  };
  std::vector<Plan> plans;

  // Top member only, while stations report it: ranks that an operation waits for.
  struct Waiting {
    Sequence sequence = 0;
    std::vector<Member> ranks;  // ascending
    Nanos time = 0;             // since the last contribution to the oldest segment
  };
  std::optional<Waiting> waiting;

  // Reductions that completed without late ranks (setting `partial`).
  struct Partial {
    uint64_t operations = 0;  // completed without the inputs of some ranks
    uint64_t excused = 0;     // the number of these that lack this rank's input
    struct Last {
      Sequence sequence = 0;
      std::vector<Member> ranks;  // ranks whose inputs are missing, ascending
      uint32_t contributors = 0;  // number of the other ranks
    };
    std::optional<Last> last;
  } partial;
};

}  // namespace mcast
