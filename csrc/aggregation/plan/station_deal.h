// The part of a reduction that stations fold: a pure function of values that all ranks and all
// stations know, so that all compute the same deal. It assigns each segment to a station or its
// owner (protocol/deal.h), as far as the planner finds it useful (aggregation/plan/placement.h).
// Any thread.
#pragma once

#include <memory>
#include <span>

#include "aggregation/plan/placement.h"
#include "aggregation/plan/station_table.h"
#include "collective/plan.h"
#include "protocol/deal.h"
#include "protocol/leaf_deal.h"

namespace mcast {

struct StationDeal {
  Placement placement;  // explains an empty deal
  // Stations are numbered as given. Null: owners fold everything.
  std::unique_ptr<const Deal> deal;
  // The owner adds its own contribution last, to the stations' fold. Otherwise it sends its
  // contribution to them, as all members do.
  bool kept = false;
  size_t segment = 0;  // bytes; the last of a shard may be shorter
  size_t share = 0;    // bytes of a shard; the last ones may be shorter
  uint64_t total = 0;  // bytes of all shards
  // The parts of a tree: stations in racks of ranks fold their racks for the other stations, to
  // which everything is dealt. Without a tree it is empty, and every station folds all
  // contributions.
  LeafDeal leaves;

  // Bytes of a segment.
  size_t length(Member owner, uint32_t number) const;
  // Takes back the deal: stations fold nothing of this operation.
  void rest();
};

// Uses these members of `agreed`: members, contributors, racks, incast, fold and aggregate. `tag`:
// of the group. All stations of the set count, even those that are out. A station in a rack of
// ranks is a leaf if some other station is not. `descriptor`: of any operation.
StationDeal deal_out(const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
                     std::span<const Station> stations);

}  // namespace mcast
