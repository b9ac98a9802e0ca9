// A station's list of one operation by the deal (protocol/deal.h) that all ranks make. Pure.
#pragma once

#include <memory>

#include "aggregation/operation.h"
#include "protocol/deal.h"

namespace mcast::aggregation {

// How an operation is cut, and which owners keep their own contribution.
struct DealtShape {
  uint64_t bytes = 0;  // of all shards together
  uint64_t share = 0;  // of a shard; the last ones may be shorter
  size_t segment = 0;  // a multiple of the element
  FoldRule rule;
  FoldOrder order = FoldOrder::kRank;
  bool kept = false;  // owners keep their own where the order of the fold allows it
};

class DealtList final : public WorkList {
 public:
  // `deal`: of `shape`; `station`: which of its stations this is. `hosts` outlives this object.
  DealtList(std::shared_ptr<const Deal> deal, uint16_t station, const DealtShape& shape,
            const Hosts& hosts);
  uint32_t size() const override { return deal_->length(station_); }
  ListEntry at(uint32_t number) const override;

 private:
  bool own_kept(Member owner) const;

  const std::shared_ptr<const Deal> deal_;
  const uint16_t station_;
  const DealtShape shape_;
  const Hosts& hosts_;
};

}  // namespace mcast::aggregation
