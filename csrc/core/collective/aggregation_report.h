// What people are told of a group's reductions: what the planner has made of the last ones, whom
// stations wait for, which have ended without late ranks. Plain data.
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
    std::string address;    // for people
    uint32_t capacity = 0;  // 1/65536 of a rank's link
    bool lost = false;      // before the operation: its part is folded by ranks
  };
  // Of the last large operation of a kind: all_reduce, reduce_scatter.
  struct Plan {
    wire::Kind kind = wire::Kind::kAllreduce;
    Sequence sequence = 0;
    uint64_t bytes = 0;  // of a rank's whole input
    Placement placement;
    std::vector<Station> stations;  // as in placement.stations
    // At the top: what such operations have taken with stations and without; 0: not measured.
    uint64_t with = 0, without = 0;  // ns
  };
  std::vector<Plan> plans;

  // At the top only, and as long as stations tell of it: whom an operation waits for.
  struct Waiting {
    Sequence sequence = 0;
    std::vector<Member> ranks;  // ascending
    Nanos time = 0;             // since the last contribution to the oldest segment
  };
  std::optional<Waiting> waiting;

  // Of results without late ranks (setting `partial`).
  struct Partial {
    uint64_t operations = 0;  // that ended without some ranks' inputs
    uint64_t excused = 0;     // of these, without this rank's
    struct Last {
      Sequence sequence = 0;
      std::vector<Member> ranks;  // whose inputs are missing, ascending
      uint32_t contributors = 0;  // the others
    };
    std::optional<Last> last;
  } partial;
};

}  // namespace mcast
