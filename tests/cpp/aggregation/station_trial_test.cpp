// When stations rest and when they fold again, with times that the test defines.
#include "aggregation/member/station_trial.h"

#include <gtest/gtest.h>

namespace mcast {
namespace {

using Key = StationTrial::Key;
constexpr Key kSum{false, 1 << 20};
constexpr Key kScatter{true, 1 << 20};

// A group that follows the trial, one operation after the other.
struct Compared {
  Nanos with, without;
  Key key = kSum;
  StationTrial trial = {};
  Nanos now = kSecond;
  int changes = 0;

  Compared(Nanos its_with, Nanos its_without, Key its_key = kSum)
      : with(its_with), without(its_without), key(its_key) {
    trial.reset(now);
  }
  void operation() {
    const Nanos begin = now;
    now += trial.resting() ? without : with;
    trial.add(key, trial.resting(), begin, now);
    if (!trial.wants_change(now)) return;
    changes++;
    trial.on_change(!trial.resting(), now);
  }
  void run(Nanos time) {
    for (const Nanos end = now + time; now < end;) operation();
  }
  // Per cent of a period in which stations rested.
  double resting(Nanos time) {
    Nanos rested = 0;
    for (const Nanos end = now + time; now < end;) {
      const Nanos before = now;
      const bool rests = trial.resting();
      operation();
      if (rests) rested += now - before;
    }
    return 100.0 * static_cast<double>(rested) / static_cast<double>(time);
  }
};

TEST(StationTrial, NothingIsTriedInTheFirstSeconds) {
  Compared c(20 * kMilli, 10 * kMilli);
  c.run(StationTrial::kFirst - kSecond);
  EXPECT_EQ(c.changes, 0);
}

TEST(StationTrial, SlowStationsRest) {
  Compared c(20 * kMilli, 10 * kMilli);
  c.run(StationTrial::kFirst + 2 * kSecond);
  EXPECT_TRUE(c.trial.resting());
  EXPECT_GT(c.resting(1000 * kSecond), 98);
  const StationTrial::Times times = c.trial.times(kSum);
  EXPECT_EQ(times.with, 20 * kMilli);
  EXPECT_EQ(times.without, 10 * kMilli);
}

TEST(StationTrial, FastStationsWorkAndLooksBecomeRare) {
  Compared c(10 * kMilli, 20 * kMilli);
  EXPECT_LT(c.resting(1000 * kSecond), 1);
  EXPECT_FALSE(c.trial.resting());
  const int before = c.changes;
  c.run(StationTrial::kLongestRest);
  EXPECT_LE(c.changes - before, 2);  // to the other state and back
}

TEST(StationTrial, ALittleSlowerIsNotSlow) {
  Compared equal(10 * kMilli, 10 * kMilli);
  EXPECT_LT(equal.resting(1000 * kSecond), 1);
  Compared scatter(11 * kMilli, 10 * kMilli, kScatter), all(11 * kMilli, 10 * kMilli, kSum);
  EXPECT_LT(scatter.resting(1000 * kSecond), 1);
  EXPECT_GT(all.resting(1000 * kSecond), 90);
}

TEST(StationTrial, FindsStationsThatBecameFaster) {
  Compared c(20 * kMilli, 10 * kMilli);
  c.run(100 * kSecond);
  ASSERT_TRUE(c.trial.resting());
  c.with = 5 * kMilli;
  c.run(20 * StationTrial::kLongestRest / 10);
  EXPECT_FALSE(c.trial.resting());
}

// A rank that is occasionally late makes some batches slow, in either state.
TEST(StationTrial, LateRanksDoNotDecide) {
  Compared c(10 * kMilli, 20 * kMilli);
  for (int i = 0; i < 20'000; i++) {
    c.with = i % 16 < 5 ? 200 * kMilli : 10 * kMilli;
    c.operation();
  }
  EXPECT_FALSE(c.trial.resting());
}

TEST(StationTrial, OtherStationsAreMeasuredAnew) {
  Compared c(20 * kMilli, 10 * kMilli);
  c.run(30 * kSecond);
  ASSERT_TRUE(c.trial.resting());
  c.trial.reset(c.now);
  EXPECT_FALSE(c.trial.resting());
  EXPECT_EQ(c.trial.times(kSum).with, 0);
  const int before = c.changes;
  c.run(StationTrial::kFirst - kSecond);
  EXPECT_EQ(c.changes, before);
}

// Only equal operations are compared: large ones in one state and small ones in the other give no
// result.
TEST(StationTrial, OperationsOfOtherLengthsAreNotCompared) {
  StationTrial trial;
  trial.reset(0);
  Nanos now = StationTrial::kFirst;
  for (int i = 0; !trial.wants_change(now); i++) {
    ASSERT_LT(i, 10'000);
    trial.add(kSum, false, now, now + 20 * kMilli);
    now += 20 * kMilli;
  }
  trial.on_change(true, now);
  for (int i = 0; !trial.wants_change(now); i++) {
    ASSERT_LT(i, 10'000);
    trial.add({false, 1 << 16}, true, now, now + kMilli);
    now += kMilli;
  }
  trial.on_change(false, now);
  EXPECT_FALSE(trial.resting());
}

TEST(StationTrial, PostponedChangeIsTriedLater) {
  StationTrial trial;
  trial.reset(0);
  Nanos now = StationTrial::kFirst;
  const auto run = [&](Nanos time) {
    int asked = 0;
    for (const Nanos end = now + time; now < end;) {
      trial.add(kSum, false, now, now + 20 * kMilli);
      now += 20 * kMilli;
      if (!trial.wants_change(now)) continue;
      asked++;
      trial.put_off(now);
    }
    return asked;
  };
  EXPECT_EQ(run(StationTrial::kFirst), 1);
  EXPECT_EQ(run(3 * StationTrial::kFirst), 3);
  EXPECT_FALSE(trial.resting());
}

}  // namespace
}  // namespace mcast
