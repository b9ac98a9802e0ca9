// Report on a group's reductions for users: the planner's latest decisions, the ranks that stations
// wait for, and the operations that ended without late ranks. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "protocol/placement.h"
#include "wire/descriptor.h"

namespace mcast {

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
