#include "support/ranks/arena_new.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "shm/arena_pool.h"

namespace mcast::test {
namespace {

std::atomic<ArenaPool*> large_blocks{nullptr};

void* block_of(size_t bytes) {
  ArenaPool* const arenas = large_blocks.load(std::memory_order_relaxed);
  if (arenas != nullptr && bytes >= (size_t{64} << 10)) {
    if (void* const block = arenas->allocate(bytes)) return block;
  }
  if (void* const block = std::malloc(bytes)) return block;
  throw std::bad_alloc();
}

void release(void* block) noexcept {
  ArenaPool* const arenas = large_blocks.load(std::memory_order_relaxed);
  if (arenas != nullptr && ArenaPool::release_any(static_cast<std::byte*>(block))) return;
  std::free(block);
}

}  // namespace

void new_in_arenas() {
  const auto opened = ArenaPool::open_for_process();
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  large_blocks = *opened;
}

const char* engine_memory() {
  const char* const told = std::getenv("MCAST_TEST_ENGINE_MEMORY");
  if (told != nullptr) return told;
  return large_blocks.load() != nullptr ? "map_all" : "slots";
}

}  // namespace mcast::test

void* operator new(size_t bytes) { return mcast::test::block_of(bytes); }
void* operator new[](size_t bytes) { return mcast::test::block_of(bytes); }
// Used by std::stable_sort. A sanitizer's own version would not match the `delete` below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* block) noexcept { mcast::test::release(block); }
void operator delete[](void* block) noexcept { mcast::test::release(block); }
void operator delete(void* block, size_t) noexcept { mcast::test::release(block); }
void operator delete[](void* block, size_t) noexcept { mcast::test::release(block); }
