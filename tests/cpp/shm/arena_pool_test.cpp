#include "shm/arena_pool.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace mcast {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<ArenaPool> pool_of(size_t bytes) {
  auto made = ArenaPool::create(bytes);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

size_t resident_pages(const ArenaPool& pool) {
  struct stat info {};
  EXPECT_EQ(::fstat(pool.segment().fd(), &info), 0);
  return static_cast<size_t>(info.st_blocks) * 512 / ArenaPool::kPage;
}

TEST(ArenaPool, BlocksNeverOverlapAndKeepTheirBytes) {
  const auto pool = pool_of(64 * kMiB);
  Rng rng(7);
  std::map<std::byte*, std::pair<size_t, uint8_t>> blocks;
  for (int i = 0; i < 3000; i++) {
    if (blocks.empty() || rng.chance(0.55)) {
      const size_t bytes = 1 + rng.below(3 * kMiB);
      const auto value = static_cast<uint8_t>(i);
      if (std::byte* const at = pool->allocate(bytes)) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % ArenaPool::kPage, 0u);
        at[0] = at[bytes / 2] = at[bytes - 1] = std::byte{value};
        ASSERT_TRUE(blocks.emplace(at, std::pair(bytes, value)).second);
      } else {
        EXPECT_GT(pool->in_use() + bytes, 32 * kMiB);
      }
      continue;
    }
    auto it = std::next(blocks.begin(), static_cast<ptrdiff_t>(rng.below(blocks.size())));
    const auto [bytes, value] = it->second;
    for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
      ASSERT_EQ(it->first[at], std::byte{value});
    }
    EXPECT_EQ(pool->offset_of(it->first, bytes), it->first - pool->segment().data());
    EXPECT_TRUE(pool->release(it->first));
    blocks.erase(it);
  }
  for (const auto& [at, block] : blocks) EXPECT_TRUE(pool->release(at));
  EXPECT_EQ(pool->in_use(), 0u);
  std::byte* const whole = pool->allocate(64 * kMiB);
  EXPECT_NE(whole, nullptr) << "what was released is one hole again";
  EXPECT_EQ(pool->allocate(1), nullptr);
}

TEST(ArenaPool, KnowsForeignMemory) {
  const auto pool = pool_of(kMiB);
  std::byte outside{};
  EXPECT_FALSE(pool->release(&outside));
  EXPECT_FALSE(pool->offset_of(&outside, 1));
  EXPECT_FALSE(pool->offset_of(pool->segment().data() + kMiB - 1, 2));
  EXPECT_FALSE(pool->offset_of(pool->segment().data(), SIZE_MAX));
  EXPECT_EQ(pool->offset_of(pool->segment().data() + 5, 10), 5u);
}

// The memory kept for the next block is bounded; the rest is given back to the system.
TEST(ArenaPool, GivesPagesBack) {
  const auto pool = pool_of(2048 * kMiB);
  std::byte* const large = pool->allocate(400 * kMiB);
  for (size_t at = 0; at < 400 * kMiB; at += ArenaPool::kPage) large[at] = std::byte{1};
  EXPECT_GE(resident_pages(*pool), 400 * kMiB / ArenaPool::kPage);
  pool->release(large);
  EXPECT_EQ(pool->kept(), 0u);
  EXPECT_LE(resident_pages(*pool), 16u);
  std::byte* const small = pool->allocate(8 * kMiB);
  std::memset(small, 1, 8 * kMiB);
  pool->release(small);
  EXPECT_EQ(pool->kept(), 8 * kMiB);
  std::byte* const again = pool->allocate(4 * kMiB);
  EXPECT_EQ(again, small);
  EXPECT_EQ(pool->kept(), 4 * kMiB);
}

TEST(ArenaPool, PopulatesABlockOnce) {
  const auto pool = pool_of(64 * kMiB);
  std::byte* const block = pool->allocate(4 * kMiB);
  EXPECT_LE(resident_pages(*pool), 1u);
  pool->populate(block + kMiB, 100);  // of a sparse tensor no more than that
  EXPECT_LE(resident_pages(*pool), 2u);
  pool->populate(block, 4 * kMiB);
  if (resident_pages(*pool) <= 1) GTEST_SKIP() << "needs MADV_POPULATE_WRITE (Linux 5.14)";
  EXPECT_EQ(resident_pages(*pool), 4 * kMiB / ArenaPool::kPage);
}

// Keeps what the next step may need, estimated from the memory in use now.
TEST(ArenaPool, KeepsNoMoreThanIsInUse) {
  const auto pool = pool_of(4096 * kMiB);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 12; i++) blocks.push_back(pool->allocate(100 * kMiB));
  for (std::byte* const block : blocks) {
    pool->release(block);
    EXPECT_LE(pool->kept(), std::max(256 * kMiB, pool->in_use()));
  }
  EXPECT_EQ(pool->in_use(), 0u);
  EXPECT_EQ(pool->allocate(SIZE_MAX - 10), nullptr) << "does not wrap";
}

// Processes that map the segment cannot write to pages that became private, not even later.
TEST(ArenaPool, PrivatePagesAreOutOfReach) {
  const auto pool = pool_of(16 * kMiB);
  auto peer = Segment::attach(::getpid(), pool->segment().fd(), 16 * kMiB);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  std::byte* const block = pool->allocate(2 * kMiB);
  std::memset(block, 3, 2 * kMiB);
  ASSERT_EQ(peer->data()[100], std::byte{3});
  EXPECT_TRUE(pool->make_private(block + 4096, 102'400));
  EXPECT_FALSE(pool->offset_of(block + 5000, 100'000));
  EXPECT_FALSE(pool->offset_of(block, 2 * kMiB));
  EXPECT_EQ(pool->offset_of(block, 4096), 0u);
  std::memset(peer->data(), 9, 2 * kMiB);
  EXPECT_TRUE(
      std::all_of(block + 4096, block + 106'496, [](std::byte b) { return b == std::byte{3}; }));
  EXPECT_EQ(block[0], std::byte{9}) << "the rest is shared as before";
  EXPECT_TRUE(pool->make_private(block + 98'304, 53'248));  // overlaps
  std::memset(peer->data(), 8, 2 * kMiB);
  EXPECT_EQ(block[151'551], std::byte{9});
  EXPECT_EQ(block[151'552], std::byte{8});
  pool->release(block);
  EXPECT_NE(pool->allocate(4096), block) << "its addresses are not used again";
}

// The rest of a block's last page is unused; the rest of any other page may be in use.
TEST(ArenaPool, KnowsWhichBytesShareNoPage) {
  const auto pool = pool_of(16 * kMiB);
  std::byte* const block = pool->allocate(3 * 4096 + 100);
  std::byte* const next = pool->allocate(4096);
  EXPECT_TRUE(pool->has_pages_alone(block, 3 * 4096 + 100));
  EXPECT_TRUE(pool->has_pages_alone(block + 4096, 2 * 4096 + 100));
  EXPECT_TRUE(pool->has_pages_alone(block + 4096, 4096));
  EXPECT_TRUE(pool->has_pages_alone(next, 4096));
  EXPECT_FALSE(pool->has_pages_alone(block, 3 * 4096 + 99));
  EXPECT_FALSE(pool->has_pages_alone(block, 3 * 4096 + 101));
  EXPECT_FALSE(pool->has_pages_alone(block + 1, 4095));
  EXPECT_FALSE(pool->has_pages_alone(block, 100));
  EXPECT_FALSE(pool->has_pages_alone(pool->segment().data() + 16 * kMiB, 4096));
}

// A training thread may write to words beside a slice on the same pages. It never reads a value
// that it has not written, and no write is lost.
TEST(ArenaPool, PagesThatOthersWriteToAreNeverExchanged) {
  constexpr size_t kPages = 1500;
  constexpr uint32_t kWords[] = {0x013D345B, 0x013D3520, 0x013D3B5B};
  const auto pool = pool_of(16 * kMiB);
  std::byte* const block = pool->allocate(kPages * ArenaPool::kPage);
  std::memset(block, 0, kPages * ArenaPool::kPage);
  std::atomic<size_t> page{0};
  std::atomic<uint64_t> strange{0}, writes{0};
  std::thread writer([&] {
    for (size_t at = 0; (at = page) < kPages; writes++) {
      auto* const words = reinterpret_cast<uint32_t*>(block + at * ArenaPool::kPage);
      const uint32_t value = kWords[writes % 3];
      for (const size_t w : {24, 30, 1000}) {  // slice: bytes 100 to 120, or 0 to 20
        std::atomic_ref<uint32_t> word(words[w]);
        word.store(value, std::memory_order_relaxed);
        strange += word.load(std::memory_order_relaxed) != value;
      }
    }
  });
  for (size_t i = 0; i < kPages; i++) {
    page = i;
    std::byte* const slice = block + i * ArenaPool::kPage + (i % 2 == 0 ? 100 : 0);
    std::memset(slice, 7, 20);
    EXPECT_FALSE(pool->make_private(slice, 20));
    EXPECT_TRUE(std::all_of(slice, slice + 20, [](std::byte b) { return b == std::byte{7}; }));
    for (const uint64_t seen = writes; writes < seen + 2;) std::this_thread::yield();
  }
  page = kPages;
  writer.join();
  EXPECT_EQ(strange, 0u);
  EXPECT_TRUE(pool->offset_of(block, kPages * ArenaPool::kPage)) << "nothing became private";
}

TEST(ArenaPool, AForkedChildHasItsOwn) {
  auto opened = ArenaPool::open_for_process();
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  ArenaPool& pool = **opened;
  EXPECT_EQ(ArenaPool::of_process(), &pool);
  EXPECT_EQ(*ArenaPool::open_for_process(), &pool);
  std::byte* const block = pool.allocate(kMiB);
  std::memset(block, 5, kMiB);
  std::byte outside{};
  const pid_t child = ::fork();
  if (child == 0) {
    const bool same = block[77] == std::byte{5};
    std::memset(block, 6, kMiB);
    const bool none = pool.allocate(kMiB) == nullptr && !pool.offset_of(block, 1);
    const bool freed = pool.release(block);
    bool own = ArenaPool::of_process() == nullptr;
    const auto again = ArenaPool::open_for_process();
    own = own && again.ok() && *again != &pool;
    std::byte* const mine = own ? (*again)->allocate(kMiB) : nullptr;
    own = mine != nullptr && ArenaPool::release_any(mine) && ArenaPool::release_any(block) &&
          !ArenaPool::release_any(&outside);
    ::_exit(same && none && freed && own && block[77] == std::byte{6} ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::all_of(block, block + kMiB, [](std::byte b) { return b == std::byte{5}; }));
  EXPECT_TRUE(pool.release(block));
}

// A forked worker reads a tensor that the parent has freed meanwhile, as persistent workers of a
// DataLoader do with the data set. New tensors of the parent must not be placed there.
TEST(ArenaPool, ABlockThatAChildMapsIsNotUsedAgainBeforeItEnds) {
  auto opened = ArenaPool::open_for_process();
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  ArenaPool& pool = **opened;
  // More than is kept for later: memory that is given back to the system reads as zeros.
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 4; i++) {
    blocks.push_back(pool.allocate(100 * kMiB));
    ASSERT_NE(blocks.back(), nullptr);
    blocks.back()[5 * kMiB] = std::byte{5};
  }
  int go_on[2], told[2];
  ASSERT_EQ(::pipe(go_on), 0);
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() != 0) ::_exit(0);  // its own children map the blocks as well
    char byte = 0;
    bool same = ::read(go_on[0], &byte, 1) == 1;
    for (std::byte* const block : blocks) same = same && block[5 * kMiB] == std::byte{5};
    byte = same ? 'y' : 'n';
    ::_exit(::write(told[1], &byte, 1) == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const size_t before = pool.kept();
  for (std::byte* const block : blocks) EXPECT_TRUE(pool.release(block));
  EXPECT_EQ(pool.kept(), before) << "not to be taken, nor given to the system";
  for (int i = 0; i < 4; i++) {
    std::byte* const next = pool.allocate(100 * kMiB);
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(std::count(blocks.begin(), blocks.end(), next), 0);
    EXPECT_TRUE(pool.release(next)) << "which is younger than the fork, and used again";
  }
  for (std::byte* const block : blocks) EXPECT_EQ(block[5 * kMiB], std::byte{5});
  char same = 0;
  EXPECT_EQ(::write(go_on[1], "", 1), 1);
  EXPECT_EQ(::read(told[0], &same, 1), 1);
  EXPECT_EQ(same, 'y') << "the child sees what was there when it was forked";
  for (const int end : {go_on[0], go_on[1], told[0], told[1]}) ::close(end);
  std::byte* again = nullptr;
  for (int i = 0; i < 60'000 && again != blocks[0]; i++) {
    if (again != nullptr) (void)pool.release(again);
    ::usleep(1000);  // until the kernel has closed the child's end of its pipe
    again = pool.allocate(100 * kMiB);
  }
  EXPECT_EQ(again, blocks[0]) << "lowest first";
  EXPECT_TRUE(pool.release(again));
}

}  // namespace
}  // namespace mcast
