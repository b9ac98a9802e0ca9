// Chunks are copied, since the datagram's memory belongs to the transport. The bound counts payload
// and bookkeeping, so that a flood of tiny chunks cannot grow past it either.
#include "protocol/staging.h"

#include <algorithm>

#include "protocol/eager_window.h"

namespace mcast {

Staging::Put Staging::put(Sequence sequence, const Key& key, uint32_t descriptor, bool live,
                          ConstBytes payload) {
  const size_t cost = EagerWindow::cost(1, payload.size());
  auto& op = ops_[sequence];
  if (op.count(key)) return Put::kDuplicate;
  if (bytes_ + cost > capacity_) {
    if (op.empty()) ops_.erase(sequence);
    return Put::kFull;
  }
  op.emplace(key, Entry{descriptor, live, {payload.begin(), payload.end()}});
  bytes_ += cost;
  peak_ = std::max(peak_, bytes_);
  return Put::kStored;
}

bool Staging::holds(Sequence sequence, const Key& key) const {
  const auto op = ops_.find(sequence);
  return op != ops_.end() && op->second.count(key) > 0;
}

bool Staging::holds(Sequence sequence, Member root) const {
  const auto op = ops_.find(sequence);
  if (op == ops_.end()) return false;
  const auto first = op->second.lower_bound({root, 0});
  return first != op->second.end() && first->first.root == root;
}

std::map<Staging::Key, Staging::Entry> Staging::take(Sequence sequence) {
  const auto it = ops_.find(sequence);
  if (it == ops_.end()) return {};
  auto taken = std::move(it->second);
  ops_.erase(it);
  for (const auto& [key, entry] : taken) bytes_ -= EagerWindow::cost(1, entry.payload.size());
  return taken;
}

}  // namespace mcast
