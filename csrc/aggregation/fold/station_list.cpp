// The list uses the deal's own numbering and the plan's lengths. In a tree, lists are stored
// explicitly: a leaf's list has entries of several stations at the top, each with its number there.
#include "aggregation/fold/station_list.h"

#include <algorithm>
#include <string>
#include <utility>

namespace mcast {
namespace {

class DealtList final : public aggregation::WorkList {
 public:
  DealtList(StationDeal deal, uint16_t index, size_t memory)
      : deal_(std::move(deal)), index_(index), memory_(memory) {}

  size_t memory() const override { return memory_; }
  uint32_t size() const override { return deal_.deal->length(index_); }
  aggregation::ListEntry at(uint32_t number) const override {
    const Deal::Entry entry = deal_.deal->entry(index_, number);
    const size_t bytes = deal_.length(entry.owner, entry.segment);
    return {entry.segment, entry.owner, static_cast<uint32_t>(bytes), deal_.kept};
  }

 private:
  const StationDeal deal_;
  const uint16_t index_;
  const size_t memory_;
};

class TreeList final : public aggregation::WorkList {
 public:
  static constexpr size_t kEntryBytes = sizeof(aggregation::ListEntry) + sizeof(Parent);

  TreeList(const StationDeal& deal, const Racks& racks, std::span<const Station> stations,
           uint16_t index, size_t memory)
      : memory_(memory) {
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
    size_t most = deal.deal->length(index);
    for (uint16_t j = 0; rack_ && j < stations.size(); j++) most += deal.deal->length(j);
    entries_.reserve(most);
    if (rack_) parents_.reserve(most);
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

  size_t memory() const override { return memory_; }
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
  const size_t memory_;
};

// Upper bound by the descriptor alone: the deal, and in a tree also its entries, all of which may
// be the station's. SIZE_MAX: at least that.
size_t list_bytes(const wire::Descriptor& descriptor, const Agreed& agreed, size_t stations) {
  const bool scatter = descriptor.kind == wire::Kind::kReduceScatter;
  const uint64_t share = scatter ? descriptor.bytes : descriptor.bytes / agreed.members;
  const uint64_t rows = share / reduce_segment(agreed, descriptor) + 2;
  const size_t deal = Deal::most_bytes(rows, agreed.members, stations);
  if (agreed.racks.flat()) return deal;
  size_t sum = 0;
  const bool more = __builtin_mul_overflow(rows, agreed.members * TreeList::kEntryBytes, &sum) ||
                    __builtin_add_overflow(sum, deal, &sum);
  return more ? SIZE_MAX : sum;
}

}  // namespace

Result<std::unique_ptr<const aggregation::WorkList>> make_station_list(
    const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
    std::span<const Station> stations, uint16_t index, size_t room) {
  const size_t memory = list_bytes(descriptor, agreed, stations.size());
  if (memory > room) {
    return Status(Code::kResourceExhausted,
                  "the station has no room for the list of segments of " + descriptor.to_string());
  }
  StationDeal deal = deal_out(descriptor, agreed, tag, stations);
  if (!deal.deal) {
    return Status(Code::kInvalidArgument,
                  std::string("stations do not fold it: ") + placement_text(deal.placement.reason));
  }
  if (deal.leaves.any()) {
    return std::unique_ptr<const aggregation::WorkList>(
        std::make_unique<TreeList>(deal, agreed.racks, stations, index, memory));
  }
  return std::unique_ptr<const aggregation::WorkList>(
      std::make_unique<DealtList>(std::move(deal), index, memory));
}

}  // namespace mcast
