// SkewLimiter: how far a root may be ahead, and the behaviour when the slowest one stops.
#include <gtest/gtest.h>

#include "protocol/block_sender.h"
#include "protocol/skew_limiter.h"

namespace mcast {
namespace {

TEST(SkewLimiter, FollowsTheSlowest) {
  SkewLimiter limiter(10, kMilli);
  EXPECT_EQ(limiter.end(0, 0), 10u);
  EXPECT_EQ(limiter.end(25, 1), 35u);
  EXPECT_EQ(limiter.end(30, 2), 40u);
}

TEST(SkewLimiter, DoesNotWaitForOneThatStandsStill) {
  SkewLimiter limiter(10, kMilli);
  EXPECT_EQ(limiter.end(5, 0), 15u);
  EXPECT_EQ(limiter.end(5, kMilli - 1), 15u);
  EXPECT_EQ(limiter.deadline(), kMilli);
  EXPECT_EQ(limiter.end(5, kMilli), SkewLimiter::kNoLimit);
  EXPECT_EQ(limiter.end(5, kSecond), SkewLimiter::kNoLimit);
  // It continues and counts again.
  EXPECT_EQ(limiter.end(6, kSecond), 16u);
}

TEST(SkewLimiter, WaitsLongerWhereStreamsAreSlowButNotForEver) {
  SkewLimiter limiter(10, kMilli);
  Nanos now = 0;
  for (Chunk c = 0; c < 100; c++, now += 3 * kMilli) (void)limiter.end(c, now);
  now -= 3 * kMilli;
  EXPECT_EQ(limiter.end(99, now + 9 * kMilli), 109u);
  EXPECT_EQ(limiter.end(99, now + 13 * kMilli), SkewLimiter::kNoLimit);
  for (Chunk c = 100; c < 200; c++, now += kSecond) (void)limiter.end(c, now);
  now -= kSecond;
  EXPECT_EQ(limiter.end(199, now + 25 * kMilli), SkewLimiter::kNoLimit);
}

TEST(SkewLimiter, LimitSaturatesNearTheLastChunkNumber) {
  SkewLimiter limiter(10, kMilli);
  EXPECT_EQ(limiter.end(SkewLimiter::kNoLimit - 3, 0), SkewLimiter::kNoLimit);
}

TEST(SkewLimiter, HoldsASenderBeyondItsEagerPart) {
  SenderParams p;
  p.chunks = 100;
  p.eager = 4;
  p.window = 40;
  BlockSender s(p);
  s.hold_at(2);
  EXPECT_EQ(s.allowed_end(), 4u);
  s.on_credit(0, 100, 0, 0);
  s.hold_at(20);
  bool again = false;
  EXPECT_EQ(s.take(100, again, 0), (ChunkRange{0, 20}));
  EXPECT_TRUE(s.held());
  EXPECT_FALSE(s.can_send());
  EXPECT_EQ(s.stalls(), 0u) << "not for want of credit";
  s.resend({0, 1});
  EXPECT_TRUE(s.can_send()) << "repairs are not held";
  EXPECT_EQ(s.take(100, again, 0), (ChunkRange{0, 1}));
  s.hold_at(SkewLimiter::kNoLimit);
  EXPECT_FALSE(s.held());
  EXPECT_EQ(s.take(100, again, 0), (ChunkRange{20, 40}));
  EXPECT_EQ(s.stalls(), 1u);
}

}  // namespace
}  // namespace mcast
