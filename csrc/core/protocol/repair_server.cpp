// Merges repair requests by a sweep over range boundaries: chunks requested by two or more
// different members are multicast once, all others are sent by stream. A chunk that several ranks
// keep losing (a burst at all of them, a receiver that gets no multicast) is repeated only a few
// times, then streams deliver it: so repair ends whatever the multicast does. A flush costs O(r log
// r) in the ranges held and O(1) per repeated chunk, however many chunks were repeated before.
// Memory is bounded by the requests that members may have outstanding and two bits per chunk.
#include "protocol/repair_server.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/coverage.h"
#include "protocol/chunk_set.h"

namespace mcast {
namespace {

constexpr Chunk kCountsPerWord = 32;  // of two bits each
static_assert(RepairServer::kMaxRepeats <= 3);

}  // namespace

void RepairServer::add(Member asker, uint32_t id, std::vector<ChunkRange> ranges, Nanos now) {
  used_ = true;
  if (pending_.empty()) due_ = now + hold_;
  pending_.push_back({asker, id, std::move(ranges)});
}

void RepairServer::flush(std::vector<ChunkRange>& again, std::vector<Answer>& answers) {
  again.clear();
  answers.clear();
  due_ = kNever;
  // Requests of one member are merged first: a rank that requests twice is still one rank.
  std::map<Member, ChunkSet> asked;
  for (const Pending& p : pending_) asked[p.asker].add(p.ranges);
  std::vector<std::pair<Chunk, int>> edges;
  for (const auto& [asker, chunks] : asked) {
    for (const ChunkRange& r : chunks) {
      edges.emplace_back(r.first, 1);
      edges.emplace_back(r.end, -1);
    }
  }
  std::sort(edges.begin(), edges.end());
  std::vector<ChunkRange> twice;  // requested by two or more
  int depth = 0;
  for (const auto& [at, step] : edges) {
    const int before = depth;
    depth += step;
    if (before < 2 && depth >= 2) twice.push_back({at, at});
    if (before >= 2 && depth < 2) twice.back().end = at;
  }
  for (const ChunkRange& r : twice) {
    for (Chunk c = r.first; c < r.end; c++) {
      if (!count_repeat(c)) continue;
      if (again.empty() || again.back().end != c) again.push_back({c, c});
      again.back().end = c + 1;
    }
  }
  const ChunkSet repeat(again);
  for (const Pending& p : pending_) {
    const ChunkSet wanted(p.ranges);
    answers.push_back({p.asker, p.id, wanted.without(repeat).runs(), wanted.common(repeat).runs()});
  }
  pending_.clear();
}

bool RepairServer::count_repeat(Chunk chunk) {
  if (repeats_.empty()) repeats_.resize(chunks_ / kCountsPerWord + 1);
  uint64_t& word = repeats_[chunk / kCountsPerWord];
  const uint32_t shift = 2 * (chunk % kCountsPerWord);
  const uint64_t before = (word >> shift) & 3;
  if (before == kMaxRepeats) {
    MCAST_COVER(repetition_refused);
    return false;
  }
  if (before + 1 == kMaxRepeats) MCAST_COVER(mended_by_the_last_repetition);
  word += uint64_t{1} << shift;
  return true;
}

}  // namespace mcast
