// Durations saturate instead of wrapping around.
#include "base/types.h"

#include <gtest/gtest.h>

namespace mcast {
namespace {

constexpr int64_t kMsPerYear = int64_t{365} * 86400 * 1000;

TEST(Types, MillisecondsBeyond64BitsOfNanosecondsAreNoLimit) {
  EXPECT_EQ(nanos_of_ms(1500), 1500 * kMilli);
  EXPECT_EQ(nanos_of_ms(292 * kMsPerYear), 292 * kMsPerYear * kMilli);
  EXPECT_EQ(nanos_of_ms(300 * kMsPerYear), kNever);
  EXPECT_EQ(nanos_of_ms(INT64_MAX), kNever);
}

TEST(Types, LaterSaturates) {
  EXPECT_EQ(later(5, 7), 12);
  EXPECT_EQ(later(5, kNever), kNever);
  EXPECT_EQ(later(10 * kSecond, kNever - kSecond), kNever);
}

}  // namespace
}  // namespace mcast
