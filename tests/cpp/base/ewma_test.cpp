// The moving average: its first sample, its weight, its rounding.
#include "base/ewma.h"

#include <gtest/gtest.h>

namespace mcast {
namespace {

TEST(EwmaTest, TheFirstSampleCountsWhole) {
  Ewma mean;
  EXPECT_EQ(mean.mean(), 0);
  mean.add(1000);
  EXPECT_EQ(mean.mean(), 1000);
}

TEST(EwmaTest, LaterOnesCountAnEighth) {
  Ewma mean;
  mean.add(800);
  mean.add(1600);
  EXPECT_EQ(mean.mean(), 900);
  mean.add(0);
  EXPECT_EQ(mean.mean(), 787) << "rounded towards zero";
}

TEST(EwmaTest, ASampleOfZeroIsAsIfNoneHadCome) {
  Ewma mean;
  mean.add(0);
  mean.add(500);
  EXPECT_EQ(mean.mean(), 500);
}

TEST(EwmaTest, ItFollowsAStepAndStaysThere) {
  Ewma mean;
  mean.add(kMilli);
  for (int i = 0; i < 200; i++) mean.add(2 * kMilli);
  EXPECT_NEAR(static_cast<double>(mean.mean()), 2e6, 8);
  EXPECT_LE(mean.mean(), 2 * kMilli);
}

}  // namespace
}  // namespace mcast
