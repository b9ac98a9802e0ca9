// The minimum per root is recomputed only for streams that a report touched, over the children of
// one tree node: O(arity) per entry, so the cost at a member does not grow with the group. Most
// reports do not change the minimum, and are not passed on. High-water marks are monotone at their
// source, hence so is every minimum of them; limits may shrink, and the latest ones count.
#include "protocol/credit_tree.h"

#include <algorithm>

namespace mcast {

CreditTree::CreditTree(uint32_t roots, uint32_t children)
    : roots_(roots),
      sources_(children + 1),
      values_(static_cast<size_t>(roots) * (children + 1)),
      posted_(children + 1),
      dirty_(roots) {}

bool CreditTree::all_posted() const {
  return std::all_of(posted_.begin(), posted_.end(), [](bool p) { return p; });
}

void CreditTree::set(uint32_t source, uint32_t stream, const Least& value) {
  values_[static_cast<size_t>(source) * roots_ + stream] = value;
  if (!dirty_[stream]) {
    dirty_[stream] = true;
    dirty_list_.push_back(stream);
  }
}

void CreditTree::collect(std::vector<std::pair<uint32_t, Least>>& changed) {
  changed.clear();
  if (!all_posted()) return;
  const bool first = !announced_;
  if (first) {
    announced_ = true;
    given_.resize(roots_);
    dirty_list_.clear();
    for (uint32_t stream = 0; stream < roots_; stream++) dirty_list_.push_back(stream);
  }
  for (const uint32_t stream : dirty_list_) {
    dirty_[stream] = false;
    Least least = values_[stream];
    for (uint32_t source = 1; source < sources_; source++) {
      const Least& v = values_[static_cast<size_t>(source) * roots_ + stream];
      least.high_water = std::min(least.high_water, v.high_water);
      least.limit = std::min(least.limit, v.limit);
      least.lost = std::max(least.lost, v.lost);
    }
    if (!first && least == given_[stream]) continue;
    given_[stream] = least;
    changed.emplace_back(stream, least);
  }
  dirty_list_.clear();
}

}  // namespace mcast
