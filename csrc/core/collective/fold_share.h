// The part of one reduction in flight that is folded outside of its ranks, as one rank sees it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "protocol/deal.h"
#include "protocol/leaf_deal.h"

namespace mcast {

struct FoldShare {
  FoldShare(std::vector<Member> stations, std::unique_ptr<const Deal> dealt, LeafDeal tree,
            bool keeps)
      : members(std::move(stations)),
        owned(std::move(dealt)),
        deal(*owned),
        leaves(std::move(tree)),
        kept(keeps),
        off(members.size()) {}

  const std::vector<Member> members;  // stations, as the deal numbers them
  const std::unique_ptr<const Deal> owned;
  const Deal& deal;
  const LeafDeal leaves;  // of a tree
  // The owner adds its own contribution last, to the stations' fold.
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
