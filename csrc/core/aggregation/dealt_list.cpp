// The deal knows numbers of segments only; what is here is their lengths, and whose contribution is
// folded last: that one may stay with its owner without a change of the result's bits.
#include "aggregation/dealt_list.h"

#include <algorithm>
#include <utility>

namespace mcast::aggregation {

DealtList::DealtList(std::shared_ptr<const Deal> deal, uint16_t station, const DealtShape& shape,
                     const Hosts& hosts)
    : deal_(std::move(deal)), station_(station), shape_(shape), hosts_(hosts) {}

ListEntry DealtList::at(uint32_t number) const {
  const Deal::Entry entry = deal_->entry(station_, number);
  const uint64_t end = std::min(shape_.bytes, (entry.owner + uint64_t{1}) * shape_.share);
  const uint64_t from = entry.owner * shape_.share + uint64_t{entry.segment} * shape_.segment;
  return {entry.segment, entry.owner,
          static_cast<uint32_t>(std::min<uint64_t>(shape_.segment, end - from)),
          shape_.kept && own_kept(entry.owner)};
}

bool DealtList::own_kept(Member owner) const {
  return exact(shape_.rule) || shape_.order == FoldOrder::kTurn ||
         hosts_.host_of(owner) + 1 == hosts_.count();
}

}  // namespace mcast::aggregation
