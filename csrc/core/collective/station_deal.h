// What stations fold of a reduction: a pure function of what all ranks and all stations know, so
// that all of them deal it out alike. It says who folds which segment (protocol/deal.h), as much as
// the planner finds worth it (protocol/placement.h). Any thread.
#pragma once

#include <memory>
#include <span>

#include "collective/plan.h"
#include "collective/station_table.h"
#include "protocol/deal.h"
#include "protocol/leaf_deal.h"
#include "protocol/placement.h"

namespace mcast {

struct StationDeal {
  Placement placement;  // why nothing is dealt, if nothing is
  // Stations are numbered as given; null: owners fold everything.
  std::unique_ptr<const Deal> deal;
  // The owner adds its own contribution to what stations fold, as the last; otherwise it sends it
  // to them as everybody.
  bool kept = false;
  size_t segment = 0;  // bytes; the last of a shard may be shorter
  size_t share = 0;    // bytes of a shard; the last ones may be shorter
  uint64_t total = 0;  // bytes of all shards
  // A tree: stations in racks of ranks fold these racks for the others, to which everything is
  // dealt; the parts of it. Else there are none, and every station folds all contributions.
  LeafDeal leaves;

  // Bytes of a segment.
  size_t length(Member owner, uint32_t number) const;
  // The stations fold nothing of it after all.
  void rest();
};

// `agreed`: of it members, contributors, racks, incast, fold and aggregate count. `tag`: of the
// group. All stations of the set count, those that are out too. A station in a rack of ranks is a
// leaf, if some station is not. `descriptor`: of any operation.
StationDeal deal_out(const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
                     std::span<const Station> stations);

}  // namespace mcast
