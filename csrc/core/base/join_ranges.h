// Merges ranges of addresses that touch: memory shared by several slices is handled once, so that
// data already in place stays in place. Pure.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace mcast {

// Adds `wanted` to `ranges`, in the order of addresses. A Range has `begin` and `end`, which is one
// past its last byte; `ranges` is empty or ends before all of `wanted`.
template <typename Range>
void join_ranges(std::vector<Range> wanted, std::vector<Range>& ranges) {
  std::sort(wanted.begin(), wanted.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (Range& range : wanted) {
    if (!ranges.empty() && range.begin <= ranges.back().end) {
      ranges.back().end = std::max(ranges.back().end, range.end);
    } else {
      ranges.push_back(std::move(range));
    }
  }
}

}  // namespace mcast
