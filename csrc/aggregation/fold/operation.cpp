// A rank contributes to the entries that it leads for, in ascending order, so one number per rank
// describes everything that it has sent. Several ranks on a host share the entries by owner, and a
// rank's next entry is found by skipping those of the others. The entries of the other stations of
// a tree are found in the same way.
#include "aggregation/fold/operation.h"

#include <algorithm>

namespace mcast::aggregation {
namespace {

// As ranks fold among hosts: if a host has folded before, its contribution already includes the
// factors.
FoldRule rule_of(const wire::Descriptor& d, const Hosts& hosts) {
  FoldRule rule;
  rule.element = static_cast<Element>(d.element);
  rule.reduction = static_cast<Reduction>(d.reduction);
  rule.divisor = hosts.members();
  if (hosts.flat()) return rule;
  rule.wide = contributes_wide(rule.element, rule.reduction);
  if (rule.reduction == Reduction::kPremulSum) rule.reduction = Reduction::kSum;
  return rule;
}

}  // namespace

Operation::Operation(const Hosts& hosts, const Racks& racks, FoldOrder order)
    : hosts_(hosts),
      racks_(racks),
      order_(order),
      opened_(hosts.members()),
      told_(hosts.members()),
      next_(hosts.members()) {
  descriptor_.name.reserve(64);
}

void Operation::begin(Sequence sequence, const wire::Descriptor& descriptor,
                      Result<std::unique_ptr<const WorkList>> planned) {
  sequence_ = sequence;
  descriptor_ = descriptor;
  hash_ = descriptor.hash();
  rule_ = rule_of(descriptor, hosts_);
  declined_ = planned.ok() ? Status() : planned.status();
  list_ = planned.ok() ? std::move(planned).value() : nullptr;
  known_.fill({});
  std::fill(opened_.begin(), opened_.end(), false);
  std::fill(told_.begin(), told_.end(), false);
  partial_ = {};
  openers_ = granted_ = emitted_ = 0;
  partners_.clear();
  if (list_) {
    for (const WorkList::Partner& who : list_->partners()) partners_.push_back({who});
  }
  for (Partner& partner : partners_) skip_to_shared(partner);
  for (uint32_t m = 0; m < hosts_.members(); m++) {
    next_[m] = brings(hosts_.host_of(static_cast<Member>(m))) ? 0 : size();
    skip_to_own(static_cast<Member>(m));
  }
}

void Operation::end() {
  list_.reset();
  partners_.clear();
}

void Operation::open(Member rank) {
  openers_ += opened_[rank] ? 0 : 1;
  opened_[rank] = true;
}

void Operation::decline(Status why) {
  declined_ = std::move(why);
  list_.reset();
  partners_.clear();
  granted_ = emitted_ = 0;
}

// If a leaf has not posted it, the leaf's opening would begin the operation again here.
bool Operation::finished() const {
  const bool top = list_ && !is_leaf();
  return opened_by_all() && emitted_ == size() &&
         (!top || std::all_of(partners_.begin(), partners_.end(),
                              [](const Partner& p) { return p.opened; }));
}

Operation::Partner* Operation::partner(Member station) {
  const auto at = std::find_if(partners_.begin(), partners_.end(),
                               [station](const Partner& p) { return p.who.station == station; });
  return at == partners_.end() ? nullptr : &*at;
}

void Operation::passed(Partner& partner) {
  partner.next++;
  skip_to_shared(partner);
}

void Operation::skip_to_shared(Partner& partner) {
  const auto shared = [&](uint32_t number) {
    const Member other =
        is_leaf() ? list_->parent(number).station : list_->leaf(partner.who.rack, at(number));
    return other == partner.who.station;
  };
  while (partner.next < size() && !shared(partner.next)) partner.next++;
}

bool Operation::takes(uint32_t host, const ListEntry& entry) const {
  if (entry.own_kept && host == hosts_.host_of(entry.owner)) return false;
  const std::optional<uint32_t> rack = only();
  return !rack || racks_.rack_of(host) == *rack;
}

bool Operation::leads(Member rank, const ListEntry& entry) const {
  const uint32_t host = hosts_.host_of(rank);
  return takes(host, entry) && brings(host) && hosts_.leader(host, entry.owner) == rank;
}

bool Operation::brings(uint32_t host) const {
  if (partners_.empty()) return true;
  const uint32_t rack = racks_.rack_of(host);
  if (is_leaf()) return rack == *only();
  return std::none_of(partners_.begin(), partners_.end(),
                      [rack](const Partner& p) { return p.who.rack == rack; });
}

void Operation::contributed(Member rank) {
  next_[rank]++;
  skip_to_own(rank);
}

void Operation::skip_to_own(Member rank) {
  while (next_[rank] < size() && !leads(rank, at(next_[rank]))) next_[rank]++;
}

FoldRun Operation::run(const ListEntry& entry) const {
  const uint32_t contributors = hosts_.count(), owner = hosts_.host_of(entry.owner);
  // Without the owner's contribution the run begins after the owner in every order: either that is
  // the order, or the owner is the last of all, or the order does not affect the result.
  if (entry.own_kept) return {(owner + 1) % contributors, contributors - 1};
  return {first_folded(order_, owner, contributors), contributors};
}

}  // namespace mcast::aggregation
