// What stations fold of one reduction in flight, as one rank sees it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collective/station_deal.h"
#include "collective/station_table.h"

namespace mcast {

struct StationShare {
  StationShare(const StationSet& its, StationDeal dealt)
      : set(its),
        owned(std::move(dealt.deal)),
        deal(*owned),
        leaves(std::move(dealt.leaves)),
        kept(dealt.kept),
        off(its.stations.size()) {}

  const StationSet& set;  // outlives the operation
  const std::unique_ptr<const Deal> owned;
  const Deal& deal;
  const LeafDeal leaves;  // a tree's
  const bool kept;
  bool opened = false;    // stations know that we have posted
  std::vector<bool> off;  // by station: it folds nothing of this operation any more
  // A tree that lacks a station: none of it folds anything of this operation any more. Why.
  std::optional<std::string> broken;

  // Of our own shard: segments that a station was to fold and that we fold, by their place in our
  // list beyond `direct`: whose they were; places below `announced` are known to contributors.
  std::vector<uint16_t> diverted;
  uint32_t direct = 0, announced = 0;
};

}  // namespace mcast
