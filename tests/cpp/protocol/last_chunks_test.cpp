// Streams with the largest possible number of chunks: an addition to a position near the last one
// must not wrap to 0.
#include <gtest/gtest.h>

#include "protocol/block_sender.h"
#include "protocol/skew_limiter.h"

namespace mcast {
namespace {

constexpr Chunk kLast = 0xffff0000;  // chunks of the longest accepted block

SenderParams longest() {
  SenderParams p;
  p.chunks = kLast;
  p.eager = 100;
  p.window = 1u << 22;
  p.widest = 1u << 23;
  p.batch = 1u << 20;
  p.quantum = 1u << 20;
  return p;
}

// The receivers have all data at once and grant as much as their numbers allow.
TEST(LastChunks, TheLongestStreamIsSentOnceAndToItsEnd) {
  BlockSender sender(longest());
  Nanos now = kMilli;
  Chunk next = 0;
  for (int turns = 0; turns < 20'000 && !sender.all_sent(); turns++) {
    bool again = false;
    const ChunkRange run = sender.take(1u << 20, again, now);
    EXPECT_FALSE(again);
    if (run.first < run.end) {
      ASSERT_EQ(run.first, next);
      next = run.end;
    }
    now += kMilli;
    const uint64_t limit = static_cast<uint64_t>(next) + (1u << 23);
    sender.on_credit(next, static_cast<Chunk>(std::min<uint64_t>(limit, kLast)), 0, now);
  }
  EXPECT_TRUE(sender.all_sent());
  EXPECT_EQ(next, kLast);
  EXPECT_FALSE(sender.can_send());
}

// Repeats the last window as often as requested, and nothing beyond it.
TEST(LastChunks, RepetitionsEndWithTheStream) {
  SenderParams p = longest();
  BlockSender sender(p);
  sender.set_all_sent();
  sender.resend({kLast - 5, UINT32_MAX});
  bool again = false;
  const ChunkRange run = sender.take(1u << 20, again, kMilli);
  EXPECT_TRUE(again);
  EXPECT_EQ(run, (ChunkRange{kLast - 5, kLast}));
  sender.put_back({kLast - 2, kLast}, again);
  EXPECT_EQ(sender.take(UINT32_MAX, again, kMilli), (ChunkRange{kLast - 2, kLast}));
  EXPECT_FALSE(sender.resending());
}

TEST(LastChunks, ALeadNearTheEndIsNotBehindTheSlowest) {
  SkewLimiter limiter(1u << 20, 2 * kMilli);
  EXPECT_EQ(limiter.end(100, kMilli), 100 + (1u << 20));
  for (const Chunk least : {kLast - (1u << 20), kLast - 1, UINT32_MAX - 1}) {
    EXPECT_GE(limiter.end(least, 2 * kMilli), least);
    EXPECT_LE(limiter.end(least, 2 * kMilli), SkewLimiter::kNoLimit);
  }
}

}  // namespace
}  // namespace mcast
