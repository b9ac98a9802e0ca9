// Staging: chunks of operations that are not posted yet.
#include <gtest/gtest.h>

#include <vector>

#include "protocol/staging.h"

namespace mcast {
namespace {

TEST(Staging, KeepsUntilTakenInOrderAndBounded) {
  Staging s(1000);
  const std::vector<std::byte> a(100, std::byte{1}), b(100, std::byte{2}), big(900);
  EXPECT_EQ(s.put(7, {1, 4}, 99, true, a), Staging::Put::kStored);
  EXPECT_EQ(s.put(7, {1, 2}, 99, true, b), Staging::Put::kStored);
  EXPECT_EQ(s.put(7, {1, 4}, 99, true, b), Staging::Put::kDuplicate);
  EXPECT_EQ(s.put(8, {0, 0}, 98, true, big), Staging::Put::kFull);
  EXPECT_LE(s.bytes(), 1000u);
  EXPECT_TRUE(s.holds(7, 1));
  EXPECT_FALSE(s.holds(7, 0));
  EXPECT_FALSE(s.holds(7, 2));
  EXPECT_FALSE(s.holds(8, 0));
  EXPECT_TRUE(s.take(8).empty());
  const auto taken = s.take(7);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken.begin()->first.chunk, 2u);
  EXPECT_EQ(taken.begin()->second.payload, b);
  EXPECT_EQ(taken.rbegin()->second.payload, a) << "the first copy stays";
  EXPECT_EQ(taken.rbegin()->second.descriptor, 99u);
  EXPECT_EQ(s.bytes(), 0u);
  EXPECT_EQ(s.put(8, {0, 0}, 98, true, big), Staging::Put::kStored);
}

TEST(Staging, APeakIsOfTheTimeSinceItWasAsked) {
  Staging s(10000);
  const std::vector<std::byte> a(1000);
  (void)s.put(1, {0, 0}, 0, true, a);
  (void)s.put(1, {0, 1}, 0, true, a);
  const size_t both = s.bytes();
  (void)s.take(1);
  (void)s.put(2, {0, 0}, 0, true, a);
  EXPECT_EQ(s.take_peak(), both);
  EXPECT_EQ(s.take_peak(), s.bytes()) << "what is kept counts from then on";
  (void)s.take(2);
  EXPECT_EQ(s.take_peak(), both / 2);
  EXPECT_EQ(s.take_peak(), 0u);
}

TEST(Staging, EmptyPayloadsCostToo) {
  Staging s(10000);
  uint32_t stored = 0;
  for (Chunk c = 0; c < 100000; c++)
    stored += s.put(0, {0, c}, 0, true, {}) == Staging::Put::kStored;
  EXPECT_LE(stored, 10000u / 64);
  EXPECT_EQ(Staging(0).put(0, {0, 0}, 0, true, {}), Staging::Put::kFull);
}

}  // namespace
}  // namespace mcast
