// Aggregation of repair requests by a sweep over range boundaries: where two or more different
// askers overlap the chunks go out once by multicast, everything else by stream to its asker. A
// chunk that several ranks keep losing (a burst at all of them, a receiver that hears nothing) is
// repeated a few times only, then streams deliver it: so repair ends whatever the multicast does.
// Work is O(r log r) in the ranges held; memory is bounded by what the askers may have outstanding
// and by the ranges that were ever repeated.
#include "protocol/repair_server.h"
#include "base/reach.h"

#include <algorithm>
#include <map>
#include <utility>

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
  // Requests of one asker are united first: a rank that asks twice is still one rank.
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
  std::vector<ChunkRange> twice;  // asked for by two or more
  int depth = 0;
  for (const auto& [at, step] : edges) {
    const int before = depth;
    depth += step;
    if (before < 2 && depth >= 2) twice.push_back({at, at});
    if (before >= 2 && depth < 2) twice.back().end = at;
  }
  const ChunkSet several(twice);
  const ChunkSet repeat = several.without(repeated_[kMaxRepeats - 1]);
  if (repeat != several) MCAST_REACH(repetition_refused);
  for (size_t k = kMaxRepeats - 1; k > 0; k--) {
    const ChunkSet once_more = repeat.common(repeated_[k - 1]);
    if (k == kMaxRepeats - 1 && !once_more.empty()) MCAST_REACH(mended_by_the_last_repetition);
    repeated_[k].add(once_more);
  }
  repeated_[0].add(repeat);
  for (const Pending& p : pending_) {
    const ChunkSet wanted(p.ranges);
    answers.push_back({p.asker, p.id, wanted.without(repeat).runs(), wanted.common(repeat).runs()});
  }
  again = repeat.runs();
  pending_.clear();
}

}  // namespace mcast
