// Both sides are walked once, from the front.
#include "protocol/ranges.h"

#include <algorithm>

namespace mcast {

std::vector<ChunkRange> intersect(const std::vector<ChunkRange>& a,
                                  const std::vector<ChunkRange>& b) {
  std::vector<ChunkRange> out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const ChunkRange both{std::max(a[i].first, b[j].first), std::min(a[i].end, b[j].end)};
    if (both.first < both.end) out.push_back(both);
    (a[i].end < b[j].end) ? i++ : j++;
  }
  return out;
}

std::vector<ChunkRange> subtract(const std::vector<ChunkRange>& a,
                                 const std::vector<ChunkRange>& b) {
  std::vector<ChunkRange> out;
  size_t j = 0;
  for (ChunkRange r : a) {
    while (j < b.size() && b[j].end <= r.first) j++;
    for (size_t k = j; k < b.size() && b[k].first < r.end; k++) {
      if (r.first < b[k].first) out.push_back({r.first, b[k].first});
      r.first = std::min(r.end, b[k].end);
    }
    if (r.first < r.end) out.push_back(r);
  }
  return out;
}

void unite(std::vector<ChunkRange>& a, const std::vector<ChunkRange>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end(),
            [](const ChunkRange& x, const ChunkRange& y) { return x.first < y.first; });
  size_t kept = 0;
  for (const ChunkRange& r : std::vector<ChunkRange>(a)) {
    if (kept > 0 && r.first <= a[kept - 1].end) {
      a[kept - 1].end = std::max(a[kept - 1].end, r.end);
    } else {
      a[kept++] = r;
    }
  }
  a.resize(kept);
}

}  // namespace mcast
