// Chunks are copied, since the datagram's memory belongs to the transport. The bound counts payload
// and bookkeeping, so that a flood of tiny chunks cannot grow past it either.
#include "protocol/staging.h"

namespace mcast {

Staging::Put Staging::put(Sequence sequence, const Key& key, uint32_t descriptor,
                          ConstBytes payload) {
  const size_t cost = payload.size() + kOverhead;
  auto& op = ops_[sequence];
  if (op.count(key)) return Put::kDuplicate;
  if (bytes_ + cost > capacity_) {
    if (op.empty()) ops_.erase(sequence);
    return Put::kFull;
  }
  op.emplace(key, Entry{descriptor, {payload.begin(), payload.end()}});
  bytes_ += cost;
  return Put::kStored;
}

std::map<Staging::Key, Staging::Entry> Staging::take(Sequence sequence) {
  const auto it = ops_.find(sequence);
  if (it == ops_.end()) return {};
  auto taken = std::move(it->second);
  ops_.erase(it);
  for (const auto& [key, entry] : taken) bytes_ -= entry.payload.size() + kOverhead;
  return taken;
}

}  // namespace mcast
