// The list is the deal's own numbering; lengths are the plan's.
#include "collective/station_list.h"

#include <string>
#include <utility>

namespace mcast {
namespace {

class DealtList final : public aggregation::WorkList {
 public:
  DealtList(StationDeal deal, uint16_t index) : deal_(std::move(deal)), index_(index) {}

  uint32_t size() const override { return deal_.deal->length(index_); }
  aggregation::ListEntry at(uint32_t number) const override {
    const Deal::Entry entry = deal_.deal->entry(index_, number);
    const size_t bytes = deal_.length(entry.owner, entry.segment);
    return {entry.segment, entry.owner, static_cast<uint32_t>(bytes), deal_.kept};
  }

 private:
  const StationDeal deal_;
  const uint16_t index_;
};

}  // namespace

Result<std::unique_ptr<const aggregation::WorkList>> make_station_list(
    const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
    std::span<const Station> stations, uint16_t index) {
  StationDeal deal = deal_out(descriptor, agreed, tag, stations);
  if (!deal.deal) {
    return Status(Code::kInvalidArgument, std::string("stations fold nothing of it: ") +
                                              placement_text(deal.placement.reason));
  }
  return std::unique_ptr<const aggregation::WorkList>(
      std::make_unique<DealtList>(std::move(deal), index));
}

}  // namespace mcast
