// One list per requester, in the order of the first request for each stream; short, since a
// requester has few open requests.
#include "protocol/repair_queue.h"

#include <algorithm>

namespace mcast {

void RepairQueue::park(Member asker, Request request) {
  std::vector<Request>& list = askers_[asker];
  const auto same = std::find_if(list.begin(), list.end(), [&](const Request& r) {
    return r.sequence == request.sequence && r.root == request.root;
  });
  if (same == list.end()) {
    list.push_back(std::move(request));
    return;
  }
  same->id = request.id;
  same->chunks.add(request.chunks);
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
  while (chunks > 0 && !front.chunks.empty()) {
    const ChunkRange part = front.chunks.pop(chunks);
    out.chunks.add({&part, 1});
    chunks -= part.size();
  }
  if (front.chunks.empty()) it->second.erase(it->second.begin());
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
