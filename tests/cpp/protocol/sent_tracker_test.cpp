// SentTracker: operations that this rank has neither posted nor received are requested.
#include <gtest/gtest.h>

#include <vector>

#include "protocol/sent_tracker.h"

namespace mcast {
namespace {

TEST(SentTracker, AsksOnceForWhatIsRipeAndNotPosted) {
  SentTracker t(3, kMilli);
  std::vector<SentTracker::Ask> asks;
  EXPECT_EQ(t.on_sent(1, 10, 3, 0), 0u);
  EXPECT_EQ(t.on_sent(1, 8, 3, 0), 10u);
  EXPECT_EQ(t.sent(1), 10u);
  t.due(3, kMilli - 1, asks);
  EXPECT_TRUE(asks.empty());
  t.on_sent(1, 20, 3, kMilli - 1);
  t.due(3, kMilli, asks);
  ASSERT_EQ(asks.size(), 1u);
  EXPECT_EQ(asks[0].root, 1);
  EXPECT_EQ(asks[0].first, 3u);
  EXPECT_EQ(asks[0].end, 10u) << "what came meanwhile may be on its way";
  EXPECT_TRUE(t.asked(1, 9));
  EXPECT_FALSE(t.asked(1, 10));
  t.due(3, t.deadline(), asks);
  ASSERT_EQ(asks.size(), 1u);
  EXPECT_EQ(asks[0].first, 10u);
  EXPECT_EQ(asks[0].end, 20u);
  EXPECT_EQ(t.deadline(), kNever);
}

TEST(SentTracker, PostedOperationsAreNotRequested) {
  SentTracker t(2, kMilli);
  std::vector<SentTracker::Ask> asks;
  t.on_sent(0, 10, 10, 0);
  EXPECT_EQ(t.deadline(), kNever) << "no timer for what has been posted";
  t.on_sent(0, 12, 10, 0);
  t.due(12, kMilli, asks);
  EXPECT_TRUE(asks.empty());
  EXPECT_EQ(t.deadline(), kNever);
}

TEST(SentTracker, ABusyRootIsAskedAllTheSame) {
  SentTracker t(2, kMilli);
  std::vector<SentTracker::Ask> asks;
  Sequence asked = 0;
  for (Sequence s = 1; s <= 1000; s++) {
    t.on_sent(0, s, 0, s * 100 * kMicro);
    t.due(0, s * 100 * kMicro, asks);
    for (const auto& a : asks) {
      EXPECT_EQ(a.first, asked);
      asked = a.end;
    }
  }
  EXPECT_GT(asked, 900u);
}

}  // namespace
}  // namespace mcast
