// Counts allocations that are large enough for payload: data that ranks send must never make a
// station allocate.
#pragma once

#include <cstddef>

namespace mcast::test {

inline constexpr size_t kBigAllocation = 2048;

// Overrides, during its lifetime, whether operator new counts requests of kBigAllocation bytes and
// more. The innermost instance decides.
class WatchAllocations {
 public:
  explicit WatchAllocations(bool watch);
  ~WatchAllocations();
  WatchAllocations(const WatchAllocations&) = delete;
  WatchAllocations& operator=(const WatchAllocations&) = delete;

 private:
  const bool before_;
};

// Large allocations that were counted since the program started.
size_t big_allocations();

}  // namespace mcast::test
