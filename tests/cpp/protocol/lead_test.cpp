// Lead: how far a root may be ahead, and what happens when the slowest stands still.
#include <gtest/gtest.h>

#include "protocol/lead.h"
#include "protocol/stream_sender.h"

namespace mcast {
namespace {

TEST(Lead, FollowsTheSlowest) {
  Lead lead(10, kMilli);
  EXPECT_EQ(lead.end(0, 0), 10u);
  EXPECT_EQ(lead.end(25, 1), 35u);
  EXPECT_EQ(lead.end(30, 2), 40u);
}

TEST(Lead, DoesNotWaitForOneThatStandsStill) {
  Lead lead(10, kMilli);
  EXPECT_EQ(lead.end(5, 0), 15u);
  EXPECT_EQ(lead.end(5, kMilli - 1), 15u);
  EXPECT_EQ(lead.deadline(), kMilli);
  EXPECT_EQ(lead.end(5, kMilli), Lead::kNoLimit);
  EXPECT_EQ(lead.end(5, kSecond), Lead::kNoLimit);
  // It moves again, and counts again.
  EXPECT_EQ(lead.end(6, kSecond), 16u);
}

TEST(Lead, WaitsLongerWhereStreamsAreSlowButNotForEver) {
  Lead lead(10, kMilli);
  Nanos now = 0;
  for (Chunk c = 0; c < 100; c++, now += 3 * kMilli) (void)lead.end(c, now);
  now -= 3 * kMilli;
  EXPECT_EQ(lead.end(99, now + 9 * kMilli), 109u);
  EXPECT_EQ(lead.end(99, now + 13 * kMilli), Lead::kNoLimit);
  for (Chunk c = 100; c < 200; c++, now += kSecond) (void)lead.end(c, now);
  now -= kSecond;
  EXPECT_EQ(lead.end(199, now + 25 * kMilli), Lead::kNoLimit);
}

TEST(Lead, NearTheLastNumberOfAChunk) {
  Lead lead(10, kMilli);
  EXPECT_EQ(lead.end(Lead::kNoLimit - 3, 0), Lead::kNoLimit);
}

TEST(Lead, HoldsASenderBeyondItsEagerPart) {
  SenderParams p;
  p.chunks = 100;
  p.eager = 4;
  p.window = 40;
  StreamSender s(p);
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
  s.hold_at(Lead::kNoLimit);
  EXPECT_FALSE(s.held());
  EXPECT_EQ(s.take(100, again, 0), (ChunkRange{20, 40}));
  EXPECT_EQ(s.stalls(), 1u);
}

}  // namespace
}  // namespace mcast
