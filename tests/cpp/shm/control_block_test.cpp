// The layout that all processes of a group share.
#include "shm/control_block.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace mcast::test {
namespace {

TEST(ControlBlock, RoundsNeverReachTheOtherFieldsOfANeed) {
  for (const uint64_t rounds : {uint64_t{0}, uint64_t{7}, (uint64_t{1} << 44) - 1,
                                uint64_t{1} << 44, (uint64_t{1} << 50) + 5, ~uint64_t{0}}) {
    const HostNeed need{HostWaiter::kThread, HostNeed::Kind::kFrom, 0x1234, rounds};
    const HostNeed back = HostNeed::unpack(need.pack());
    EXPECT_EQ(back.waiter, need.waiter);
    EXPECT_EQ(back.kind, need.kind);
    EXPECT_EQ(back.member, need.member);
    EXPECT_EQ(back.rounds, rounds & ((uint64_t{1} << HostNeed::kRoundBits) - 1));
  }
}

TEST(ControlBlock, PartsDoNotOverlapAndFillIt) {
  constexpr uint32_t kRanks = 3;
  const size_t bytes = ControlBlock::bytes(kRanks);
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)), std::free);
  const ControlBlock block(memory.get(), kRanks);
  std::memset(memory.get(), 0, bytes);
  size_t marked = 0;
  const auto mark = [&](void* part, size_t length) {
    auto* const at = static_cast<std::byte*>(part);
    ASSERT_GE(at, memory.get());
    ASSERT_LE(at + length, memory.get() + bytes);
    EXPECT_EQ((at - memory.get()) % 64, 0);
    for (size_t i = 0; i < length; i++) {
      ASSERT_EQ(at[i], std::byte{0});
      at[i] = std::byte{1};
    }
    marked += length;
  };
  mark(&block.failure(), 4096);
  for (size_t lane = 0; lane < kHostLanes; lane++) {
    for (uint32_t r = 0; r < kRanks; r++) {
      const auto m = static_cast<Member>(r);
      mark(&block.state(lane, m), sizeof(RankState));
      for (uint64_t round = 0; round < kHostDepth; round++) {
        mark(&block.header(lane, m, round), sizeof(SlotHeader));
        mark(block.data(lane, m, round), kHostSlot);
      }
      EXPECT_EQ(block.data(lane, m, 1), block.data(lane, m, kHostDepth + 1));
    }
  }
  const size_t ring = ControlBlock::ring_bytes(kRanks);
  for (Member to = 0; to < kRanks; to++) {
    mark(&block.board(to), sizeof(MessageBoard));
    for (Member from = 0; from < kRanks; from++) mark(block.ring(from, to), ring);
  }
  EXPECT_LE(marked, bytes);
  EXPECT_GT(marked + 4096, bytes) << "rings begin with a page";
}

}  // namespace
}  // namespace mcast::test
