// Regions: memory that operations read or write, lent to the engine by its owner. Operations name
// {region, offset, length}, never raw pointers, so that device staging and offload can advance a
// region piece by piece with the same calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/types.h"

namespace mcast {

// The engine holds a reference from post() until the operation's result is delivered; `keepalive`
// (for example a tensor) is destroyed with the last reference, possibly on the lane thread.
class Region {
 public:
  // `uses`: how often this allocation has been lent, this time included; 0: not known.
  Region(std::byte* data, size_t size, std::shared_ptr<void> keepalive, uint32_t uses = 0)
      : data_(data), size_(size), uses_(uses), ready_(size), keepalive_(std::move(keepalive)) {}

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  uint32_t uses() const noexcept { return uses_; }
  // For users that need the memory, but not the region, longer: a device that still reads it.
  const std::shared_ptr<void>& keepalive() const noexcept { return keepalive_; }

  // End of the bytes of a source that may be read. Starts at size(); a stager lowers it before
  // post(), then only raises it and calls the group's waker().
  uint64_t readable() const noexcept { return ready_.load(std::memory_order_acquire); }
  void set_readable(uint64_t bytes) noexcept { ready_.store(bytes, std::memory_order_release); }

 private:
  std::byte* data_;
  size_t size_;
  uint32_t uses_;
  std::atomic<uint64_t> ready_;
  std::shared_ptr<void> keepalive_;
};

// Part of a region. Empty slices may have no region.
struct Slice {
  std::shared_ptr<Region> region;
  size_t offset = 0;
  size_t length = 0;

  std::byte* data() const noexcept { return region ? region->data() + offset : nullptr; }
  ConstBytes bytes() const noexcept { return {data(), length}; }
};
// Returns true if the two share bytes; if they are the same bytes.
inline bool overlap(const Slice& a, const Slice& b) noexcept {
  if (a.length == 0 || b.length == 0) return false;
  const auto x = reinterpret_cast<uintptr_t>(a.data()), y = reinterpret_cast<uintptr_t>(b.data());
  return x < y + b.length && y < x + a.length;
}
inline bool same(const Slice& a, const Slice& b) noexcept {
  return a.data() == b.data() && a.length == b.length;
}

}  // namespace mcast
