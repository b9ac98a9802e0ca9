// Awaited: who is asked for words, who is silent.
#include <gtest/gtest.h>

#include <vector>

#include "protocol/awaited.h"

namespace mcast {
namespace {

constexpr Nanos kLimit = 8 * kSecond;

TEST(Awaited, WordsAreDueEachQuarterOfTheLimit) {
  Awaited a(kLimit);
  EXPECT_EQ(a.deadline(), kNever);
  EXPECT_FALSE(a.due(100 * kSecond));
  a.begin(100 * kSecond);
  EXPECT_FALSE(a.due(102 * kSecond - 1));
  EXPECT_TRUE(a.due(102 * kSecond));
  EXPECT_EQ(a.deadline(), 102 * kSecond);
  a.ask_all({1}, 102 * kSecond);
  EXPECT_FALSE(a.due(103 * kSecond));
  EXPECT_EQ(a.deadline(), 104 * kSecond);
  a.end();
  EXPECT_EQ(a.deadline(), kNever);
  EXPECT_FALSE(a.silent(1000 * kSecond)) << "nobody is waited for";
}

TEST(Awaited, SilenceCountsFromTheFirstWordThatWasAskedFor) {
  Awaited a(kLimit);
  a.begin(0);
  a.ask_all({1, 2}, 2 * kSecond);
  a.ask_all({1, 2}, 4 * kSecond);
  a.heard(2, 5 * kSecond);
  a.heard(3, 5 * kSecond);  // of whom nothing is expected
  EXPECT_FALSE(a.silent(10 * kSecond));
  const auto silent = a.silent(10 * kSecond + 1);
  ASSERT_TRUE(silent);
  EXPECT_EQ(silent->first, 1);
  EXPECT_EQ(silent->second, 8 * kSecond + 1);
  a.forget(1);
  EXPECT_FALSE(a.silent(13 * kSecond));
  EXPECT_EQ(a.silent(13 * kSecond + 1)->first, 2);
}

TEST(Awaited, WhoIsNotWaitedForIsNotMissed) {
  Awaited a(kLimit);
  a.begin(0);
  a.ask_all({1, 2}, 2 * kSecond);
  a.ask_all({2}, 4 * kSecond);
  a.heard(2, 9 * kSecond);
  EXPECT_FALSE(a.silent(12 * kSecond));
  a.ask_all({1, 2}, 12 * kSecond);
  EXPECT_FALSE(a.silent(17 * kSecond)) << "a new wait";
}

TEST(Awaited, AGapOfOursIsNoSilenceOfTheirs) {
  Awaited a(kLimit);
  a.begin(0);
  a.ask_all({1}, 2 * kSecond);
  a.on_poll(2 * kSecond);
  a.on_poll(60 * kSecond);
  EXPECT_FALSE(a.silent(60 * kSecond));
  a.on_poll(63 * kSecond);
  EXPECT_FALSE(a.silent(68 * kSecond));
  EXPECT_TRUE(a.silent(68 * kSecond + 1));
}

}  // namespace
}  // namespace mcast
