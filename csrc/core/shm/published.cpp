// A short list: one entry for each memory range of each operation in flight. Entries whose owner is
// gone are removed when another is added.
#include "shm/published.h"

#include <atomic>
#include <cstring>

namespace mcast {

void Published::add(const void* data, size_t bytes, const std::shared_ptr<const void>& owner) {
  const auto begin = reinterpret_cast<uint64_t>(data);
  const std::lock_guard<std::mutex> held(mutex_);
  bool there = false;
  std::erase_if(ranges_, [&](const Range& range) {
    if (range.owner.expired()) return true;
    const bool same_owner = !range.owner.owner_before(owner) && !owner.owner_before(range.owner);
    there = there || (same_owner && range.begin == begin && range.end == begin + bytes);
    return false;
  });
  if (!there) ranges_.push_back({begin, begin + bytes, owner});
}

void Published::add(const std::shared_ptr<Region>& region) {
  if (region) add(region->data(), region->size(), region);
}

std::shared_ptr<const void> Published::find(uint64_t address, size_t length) const {
  const std::lock_guard<std::mutex> held(mutex_);
  for (const Range& range : ranges_) {
    // (This order of checks avoids overflow.)
    if (address < range.begin || address > range.end || length > range.end - address) continue;
    if (auto owner = range.owner.lock()) return owner;
  }
  return nullptr;
}

bool Published::copy(uint64_t address, std::byte* to, size_t length) const {
  const std::shared_ptr<const void> hold = find(address, length);
  if (!hold) return false;
  if (length == sizeof(uint64_t) && address % sizeof(uint64_t) == 0) {
    const uint64_t word =
        reinterpret_cast<const std::atomic<uint64_t>*>(address)->load(std::memory_order_acquire);
    std::memcpy(to, &word, sizeof word);
  } else {
    std::memcpy(to, reinterpret_cast<const std::byte*>(address), length);
  }
  return true;
}

}  // namespace mcast
