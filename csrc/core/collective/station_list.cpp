// The list is the deal's own numbering; lengths are the plan's. In a tree lists are written out: a
// leaf's has entries of several stations at the top, each with its number there.
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

class TreeList final : public aggregation::WorkList {
 public:
  TreeList(const StationDeal& deal, const Racks& racks, std::span<const Station> stations,
           uint16_t index) {
    std::vector<bool> top(stations.size(), true);
    for (uint16_t j = 0; j < stations.size(); j++) {
      top[j] = !deal.leaves.has(j);
      if (j == index && !top[j]) rack_ = racks.find(stations[j].rack);
    }
    for (uint16_t j = 0; j < stations.size(); j++) {
      members_.push_back(stations[j].member);
      if (top[j] == top[index]) continue;
      partners_.push_back({stations[j].member, top[j] ? 0 : *racks.find(stations[j].rack)});
    }
    std::vector<uint32_t> numbers(stations.size());
    deal.deal->for_each([&](const Deal::Entry& entry, uint16_t station) {
      const uint32_t number = numbers[station]++;
      const auto bytes = static_cast<uint32_t>(deal.length(entry.owner, entry.segment));
      const bool ours =
          rack_ ? deal.leaves.leaf(*rack_, entry.owner, entry.segment) == index : station == index;
      if (!ours) return;
      entries_.push_back({entry.segment, entry.owner, bytes, false});
      if (rack_) parents_.push_back({members_[station], number});
    });
    leaves_ = deal.leaves;
  }

  uint32_t size() const override { return static_cast<uint32_t>(entries_.size()); }
  aggregation::ListEntry at(uint32_t number) const override { return entries_[number]; }
  std::optional<uint32_t> rack() const override { return rack_; }
  std::vector<Partner> partners() const override { return partners_; }
  Parent parent(uint32_t number) const override { return parents_[number]; }
  Member leaf(uint32_t rack, const aggregation::ListEntry& entry) const override {
    const uint16_t leaf = leaves_.leaf(rack, entry.owner, entry.segment);
    return leaf == LeafDeal::kNone ? kNoMember : members_[leaf];
  }

 private:
  std::optional<uint32_t> rack_;
  std::vector<Member> members_;  // by station
  std::vector<Partner> partners_;
  std::vector<aggregation::ListEntry> entries_;
  std::vector<Parent> parents_;  // at a leaf
  LeafDeal leaves_;
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
  if (deal.leaves.any()) {
    return std::unique_ptr<const aggregation::WorkList>(
        std::make_unique<TreeList>(deal, agreed.racks, stations, index));
  }
  return std::unique_ptr<const aggregation::WorkList>(
      std::make_unique<DealtList>(std::move(deal), index));
}

}  // namespace mcast
