// Runs are kept sorted, so that two sets are compared by walking both once from the front. Adding
// sorts again: it adds a request's runs, a few dozen.
#include "protocol/chunk_set.h"

#include <algorithm>

namespace mcast {

void ChunkSet::add(std::span<const ChunkRange> runs) {
  std::vector<ChunkRange> all(runs.begin(), runs.end());
  all.insert(all.end(), runs_.begin(), runs_.end());
  std::sort(all.begin(), all.end(),
            [](const ChunkRange& a, const ChunkRange& b) { return a.first < b.first; });
  runs_.clear();
  for (const ChunkRange& r : all) {
    if (r.first >= r.end) continue;
    if (!runs_.empty() && r.first <= runs_.back().end) {
      runs_.back().end = std::max(runs_.back().end, r.end);
    } else {
      runs_.push_back(r);
    }
  }
}

ChunkSet ChunkSet::take(ChunkRange range) {
  const ChunkSet wanted(range);
  ChunkSet taken = common(wanted);
  *this = without(wanted);
  return taken;
}

ChunkRange ChunkSet::pop(Chunk most) {
  ChunkRange& front = runs_.front();
  const ChunkRange part{front.first, front.first + std::min(most, front.size())};
  front.first = part.end;
  if (front.first == front.end) runs_.erase(runs_.begin());
  return part;
}

ChunkSet ChunkSet::common(const ChunkSet& other) const {
  ChunkSet out;
  const std::vector<ChunkRange>&a = runs_, &b = other.runs_;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const ChunkRange both{std::max(a[i].first, b[j].first), std::min(a[i].end, b[j].end)};
    if (both.first < both.end) out.runs_.push_back(both);
    (a[i].end < b[j].end) ? i++ : j++;
  }
  return out;
}

ChunkSet ChunkSet::without(const ChunkSet& other) const {
  ChunkSet out;
  const std::vector<ChunkRange>& b = other.runs_;
  size_t j = 0;
  for (ChunkRange r : runs_) {
    while (j < b.size() && b[j].end <= r.first) j++;
    for (size_t k = j; k < b.size() && b[k].first < r.end; k++) {
      if (r.first < b[k].first) out.runs_.push_back({r.first, b[k].first});
      r.first = std::min(r.end, b[k].end);
    }
    if (r.first < r.end) out.runs_.push_back(r);
  }
  return out;
}

}  // namespace mcast
