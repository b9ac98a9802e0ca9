// The part of one reduction in flight that stations fold, as one rank sees it.
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
  const LeafDeal leaves;  // of a tree
  const bool kept;
  bool opened = false;    // stations have been informed of our post
  std::vector<bool> off;  // by station: it folds nothing more of this operation
  // Set to a reason once a tree lacks a station: none of its stations folds more of this operation.
  std::optional<std::string> broken;

  // Segments of our shard that we fold instead of a station. By their position in our list beyond
  // `direct`: the station. Contributors have been informed of those below `announced`.
  std::vector<uint16_t> diverted;
  uint32_t direct = 0, announced = 0;
};

}  // namespace mcast
