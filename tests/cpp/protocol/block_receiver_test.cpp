// BlockReceiver: holes, cutoffs and the high-water mark.
#include <gtest/gtest.h>

#include <vector>

#include "protocol/block_receiver.h"

namespace mcast {
namespace {

using Ranges = std::vector<ChunkRange>;

struct Detected {
  Ranges lost;
  bool cutoff = false;
};
Detected detect(BlockReceiver& r, Nanos now, bool drained = true) {
  Detected d;
  r.detect(now, drained, d.lost, d.cutoff);
  return d;
}

TEST(BlockReceiver, NothingIsLostBeforeTheFirstSign) {
  BlockReceiver r(10, {1, kMilli});
  EXPECT_FALSE(r.heard());
  EXPECT_EQ(r.deadline(), kNever);
  EXPECT_TRUE(detect(r, 100 * kSecond).lost.empty());
}

TEST(BlockReceiver, AHoleBeyondTheToleranceIsLostAtOnceAndOnce) {
  BlockReceiver r(100, {3, kMilli});
  r.accept(0, true, 10);
  r.accept(4, true, 10);
  // Received up to 5: gaps below 5 - 3 = 2 are losses.
  EXPECT_EQ(detect(r, 10, false).lost, (Ranges{{1, 2}}));
  EXPECT_TRUE(detect(r, 10, false).lost.empty());
  EXPECT_EQ(r.lost(), 1u);
  EXPECT_EQ(r.high_water(), 5u);
}

TEST(BlockReceiver, OvertakingWithinTheToleranceIsNoLoss) {
  BlockReceiver r(8, {4, kMilli});
  for (const Chunk c : {3, 2, 1, 0, 7, 6, 5, 4}) {
    EXPECT_TRUE(r.accept(c, true, 10));
    EXPECT_TRUE(detect(r, 10).lost.empty());
  }
  EXPECT_TRUE(r.complete());
}

TEST(BlockReceiver, TheCutoffNeedsItsTimeAndADrainedSocket) {
  BlockReceiver r(10, {100, kMilli});
  r.accept(0, true, 0);
  r.on_position(10, 0);
  const Nanos due = r.deadline();
  ASSERT_NE(due, kNever);
  EXPECT_GE(due, kMilli);
  EXPECT_TRUE(detect(r, due - 1).lost.empty());
  EXPECT_TRUE(detect(r, due, false).lost.empty());
  const Detected d = detect(r, due);
  EXPECT_EQ(d.lost, (Ranges{{1, 10}}));
  EXPECT_TRUE(d.cutoff);
  EXPECT_EQ(r.deadline(), kNever);
  EXPECT_TRUE(detect(r, due + kSecond).lost.empty());
}

TEST(BlockReceiver, ProgressReArmsTheCutoff) {
  BlockReceiver r(100, {100, kMilli});
  r.on_position(100, 0);
  Nanos due = r.deadline();
  for (Chunk c = 0; c < 50; c++) {
    r.accept(c, true, c * 10 * kMicro);
    EXPECT_GE(r.deadline(), due);
    due = r.deadline();
  }
  EXPECT_GE(due, 49 * 10 * kMicro + kMilli);
}

TEST(BlockReceiver, ASlowRateDelaysRepairByABoundedTime) {
  BlockReceiver r(1000, {100, kMilli});
  r.accept(0, true, 0);
  r.accept(1, true, 10 * kSecond);
  r.on_position(1000, 10 * kSecond);
  EXPECT_LE(r.deadline(), 10 * kSecond + kMilli + 50 * kMilli);
}

TEST(BlockReceiver, DuplicatesAreNoProgress) {
  BlockReceiver r(3, {1, kMilli});
  EXPECT_TRUE(r.accept(1, true, 5));
  EXPECT_FALSE(r.accept(1, true, 6));
  EXPECT_FALSE(r.accept(1, false, 7));
  EXPECT_TRUE(r.has(1));
  EXPECT_FALSE(r.complete());
}

TEST(BlockReceiver, RepairsDoNotTellHowFarTheRootGot) {
  BlockReceiver r(10, {1, kMilli});
  r.accept(6, false, 5);
  EXPECT_EQ(r.high_water(), 0u);
  r.accept(2, true, 5);
  EXPECT_EQ(r.high_water(), 3u);
}

TEST(BlockReceiver, PositionsOnlyGoForwardAndNeverPastTheEnd) {
  BlockReceiver r(10, {1, kMilli});
  r.on_position(7, 0);
  r.on_position(3, 0);
  EXPECT_EQ(r.high_water(), 7u);
  r.on_position(0xffffffff, 0);
  EXPECT_EQ(r.high_water(), 10u);
}

TEST(BlockReceiver, HolesThatFillAgainMoveTheDeadline) {
  BlockReceiver r(10, {10, kMilli});
  r.accept(0, true, 0);
  r.accept(2, true, 0);
  EXPECT_NE(r.deadline(), kNever);
  r.accept(1, true, kMicro);
  EXPECT_EQ(r.deadline(), kNever);
}

TEST(BlockReceiver, TheOwnBlockIsComplete) {
  BlockReceiver r(10, {1, kMilli});
  r.set_all();
  EXPECT_TRUE(r.complete());
  EXPECT_TRUE(detect(r, kSecond).lost.empty());
  EXPECT_EQ(r.deadline(), kNever);
  EXPECT_TRUE(BlockReceiver(0, {1, kMilli}).complete());
}

// 6 TB of 1408-byte chunks: only the bitmap is allocated.
TEST(BlockReceiver, GapsOfNearlyTwoToThe32ChunksAreFoundExactly) {
  constexpr Chunk kMany = 0xffffff00u;
  BlockReceiver r(kMany, {46, kMilli});
  r.accept(0, true, 0);
  r.accept(kMany - 1, true, kMilli);
  EXPECT_EQ(r.high_water(), kMany);
  EXPECT_EQ(detect(r, kMilli, false).lost, (Ranges{{1, kMany - 46}}));
  EXPECT_EQ(r.lost(), kMany - 47);
  const Nanos due = r.deadline();
  EXPECT_LE(due, kMilli + kMilli + 50 * kMilli);
  EXPECT_EQ(detect(r, due).lost, (Ranges{{kMany - 46, kMany - 1}}));
  EXPECT_EQ(r.deadline(), kNever);
}

TEST(BlockReceiver, ASlowHugeStreamDoesNotOverflowItsDeadline) {
  constexpr Chunk kMany = 0xffffff00u;
  BlockReceiver r(kMany, {46, kMilli});
  r.accept(0, true, 0);
  r.accept(1, true, 3600 * kSecond);
  r.on_position(kMany, 3600 * kSecond);
  EXPECT_GT(r.deadline(), 3600 * kSecond);
  EXPECT_LE(r.deadline(), 3600 * kSecond + kSecond);
}

}  // namespace
}  // namespace mcast
