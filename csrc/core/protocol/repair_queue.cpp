// One list per asker, in the order of the first request for each stream; short, since an asker has
// few requests open.
#include "protocol/repair_queue.h"

#include <algorithm>

#include "protocol/ranges.h"

namespace mcast {

void RepairQueue::park(Member asker, Request request) {
  std::vector<Request>& list = askers_[asker];
  const auto same = std::find_if(list.begin(), list.end(), [&](const Request& r) {
    return r.sequence == request.sequence && r.root == request.root;
  });
  if (same == list.end()) {
    std::vector<ChunkRange> sorted;
    unite(sorted, request.ranges);
    request.ranges = std::move(sorted);
    list.push_back(std::move(request));
    return;
  }
  same->id = request.id;
  unite(same->ranges, request.ranges);
}

size_t RepairQueue::size() const {
  size_t n = 0;
  for (const auto& [asker, list] : askers_) n += list.size();
  return n;
}

std::vector<Member> RepairQueue::askers() const {
  std::vector<Member> out;
  for (const auto& [asker, list] : askers_) out.push_back(asker);
  return out;
}

bool RepairQueue::next(Member asker, Chunk chunks, Request& out) {
  const auto it = askers_.find(asker);
  if (it == askers_.end()) return false;
  Request& front = it->second.front();
  out = {front.sequence, front.root, front.id, {}};
  while (chunks > 0 && !front.ranges.empty()) {
    ChunkRange& r = front.ranges.front();
    const ChunkRange part{r.first, r.first + std::min(chunks, r.size())};
    out.ranges.push_back(part);
    chunks -= part.size();
    r.first = part.end;
    if (r.first == r.end) front.ranges.erase(front.ranges.begin());
  }
  if (front.ranges.empty()) it->second.erase(it->second.begin());
  if (it->second.empty()) askers_.erase(it);
  return true;
}

void RepairQueue::on_released(Sequence end) {
  for (auto it = askers_.begin(); it != askers_.end();) {
    std::erase_if(it->second, [end](const Request& r) { return r.sequence < end; });
    it = it->second.empty() ? askers_.erase(it) : std::next(it);
  }
}

}  // namespace mcast
