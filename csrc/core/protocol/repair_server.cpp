// Aggregation of repair requests by a sweep over range boundaries: where two or more different
// askers overlap the chunks go out once by multicast, everything else by stream to its asker. A
// chunk that several ranks keep losing (a burst at all of them, a receiver that hears nothing) is
// repeated a few times only, then streams deliver it: so repair ends whatever the multicast does.
// Work is O(r log r) in the ranges held; memory is bounded by what the askers may have outstanding
// and by the ranges that were ever repeated.
#include "protocol/repair_server.h"

#include <algorithm>

#include "protocol/ranges.h"

namespace mcast {

void RepairServer::add(Member asker, uint32_t id, std::vector<ChunkRange> ranges, Nanos now) {
  used_ = true;
  if (pending_.empty()) due_ = now + hold_;
  pending_.push_back({asker, id, std::move(ranges)});
}

void RepairServer::flush(std::vector<ChunkRange>& again, std::vector<Answer>& answers) {
  again.clear();
  answers.clear();
  due_ = kNever;
  // Ranges of one asker merged first: a rank that asks twice is still one rank.
  std::vector<std::pair<Chunk, int>> edges;
  std::sort(pending_.begin(), pending_.end(),
            [](const Pending& a, const Pending& b) { return a.asker < b.asker; });
  for (size_t i = 0; i < pending_.size();) {
    std::vector<ChunkRange> mine;
    size_t j = i;
    for (; j < pending_.size() && pending_[j].asker == pending_[i].asker; j++) {
      mine.insert(mine.end(), pending_[j].ranges.begin(), pending_[j].ranges.end());
    }
    std::sort(mine.begin(), mine.end(),
              [](const ChunkRange& a, const ChunkRange& b) { return a.first < b.first; });
    for (size_t k = 0; k < mine.size();) {
      ChunkRange r = mine[k++];
      while (k < mine.size() && mine[k].first <= r.end) r.end = std::max(r.end, mine[k++].end);
      edges.emplace_back(r.first, 1);
      edges.emplace_back(r.end, -1);
    }
    i = j;
  }
  std::sort(edges.begin(), edges.end());
  int depth = 0;
  for (const auto& [at, step] : edges) {
    const int before = depth;
    depth += step;
    if (before < 2 && depth >= 2) {
      if (!again.empty() && again.back().end == at) continue;  // adjacent: extend
      again.push_back({at, at});
    } else if (before >= 2 && depth < 2) {
      again.back().end = at;
    }
  }
  again = subtract(again, repeated_[kMaxRepeats - 1]);
  for (size_t k = kMaxRepeats - 1; k > 0; k--)
    unite(repeated_[k], intersect(again, repeated_[k - 1]));
  unite(repeated_[0], again);
  for (Pending& p : pending_) {
    Answer answer{p.asker, p.id, {}, {}};
    for (const ChunkRange& r : p.ranges) {
      Chunk at = r.first;
      for (const ChunkRange& a : again) {
        if (a.end <= at) continue;
        if (a.first >= r.end) break;
        if (a.first > at) answer.unicast.push_back({at, a.first});
        const Chunk from = std::max(at, a.first), to = std::min(r.end, a.end);
        answer.coming.push_back({from, to});
        at = to;
      }
      if (at < r.end) answer.unicast.push_back({at, r.end});
    }
    answers.push_back(std::move(answer));
  }
  pending_.clear();
}

}  // namespace mcast
