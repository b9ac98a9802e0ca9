// A rank contributes to the entries that it speaks for, in ascending order, so one number per rank
// says all about what has come from it. With several ranks on a host they share the entries by
// owner, and a rank's next entry is found by walking over its neighbours'.
#include "aggregation/operation.h"

#include <algorithm>

namespace mcast::aggregation {
namespace {

// As ranks fold among hosts: where a host has folded before, the factors are in its contribution
// already, and 16-bit floats have been divided.
FoldRule rule_of(const wire::Descriptor& d, const Hosts& hosts) {
  FoldRule rule;
  rule.element = static_cast<Element>(d.element);
  rule.reduction = static_cast<Reduction>(d.reduction);
  rule.divisor = hosts.members();
  if (hosts.flat()) return rule;
  const bool wide = accumulator_size(rule.element) != element_size(rule.element);
  if (rule.reduction == Reduction::kPremulSum || (rule.reduction == Reduction::kAvg && wide)) {
    rule.reduction = Reduction::kSum;
  }
  return rule;
}

}  // namespace

Operation::Operation(const Hosts& hosts, FoldOrder order)
    : hosts_(hosts),
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
  std::fill(opened_.begin(), opened_.end(), false);
  std::fill(told_.begin(), told_.end(), false);
  partial_ = {};
  openers_ = granted_ = emitted_ = 0;
  for (uint32_t m = 0; m < hosts_.members(); m++) {
    next_[m] = 0;
    skip_to_own(static_cast<Member>(m));
  }
}

void Operation::open(Member rank) {
  openers_ += opened_[rank] ? 0 : 1;
  opened_[rank] = true;
}

void Operation::decline(Status why) {
  declined_ = std::move(why);
  list_.reset();
  granted_ = emitted_ = 0;
}

bool Operation::speaks(Member rank, const ListEntry& entry) const {
  const uint32_t host = hosts_.host_of(rank);
  if (entry.own_kept && host == hosts_.host_of(entry.owner)) return false;
  return hosts_.leader(host, entry.owner) == rank;
}

void Operation::contributed(Member rank) {
  next_[rank]++;
  skip_to_own(rank);
}

void Operation::skip_to_own(Member rank) {
  while (next_[rank] < size() && !speaks(rank, at(next_[rank]))) next_[rank]++;
}

FoldRun Operation::run(const ListEntry& entry) const {
  const uint32_t contributors = hosts_.count(), owner = hosts_.host_of(entry.owner);
  // Without the owner's it begins behind the owner under every order: then either that is the
  // order, or the owner is the last of all, or the order does not show.
  if (entry.own_kept) return {(owner + 1) % contributors, contributors - 1};
  return {first_folded(order_, owner, contributors), contributors};
}

}  // namespace mcast::aggregation
