// Counts allocations that could be payload: what ranks send must never make a station allocate.
#pragma once

#include <cstddef>

namespace mcast::test {

inline constexpr size_t kBigAllocation = 2048;

// While one lives, the innermost says whether operator new counts requests of kBigAllocation bytes
// and more.
class WatchAllocations {
 public:
  explicit WatchAllocations(bool watch);
  ~WatchAllocations();
  WatchAllocations(const WatchAllocations&) = delete;
  WatchAllocations& operator=(const WatchAllocations&) = delete;

 private:
  const bool before_;
};

// Big ones that were counted since the program started.
size_t big_allocations();

}  // namespace mcast::test
