// Replaces operator new for the whole program. It calls malloc, as the library's operator new does,
// so that sanitizers still see every allocation. It is not inlined: a compiler that sees malloc
// paired with delete reports a mismatch.
#include "aggregation/big_allocations.h"

#include <cstdlib>
#include <new>

namespace mcast::test {
namespace {

bool watching = false;
size_t counted = 0;

}  // namespace

WatchAllocations::WatchAllocations(bool watch) : before_(watching) { watching = watch; }
WatchAllocations::~WatchAllocations() { watching = before_; }

size_t big_allocations() { return counted; }

}  // namespace mcast::test

[[gnu::noinline]] void* operator new(size_t size) {
  if (mcast::test::watching && size >= mcast::test::kBigAllocation) mcast::test::counted++;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
