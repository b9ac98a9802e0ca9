// How long a waiting thread spins and yields, and when other programs keep it from yielding.
#include "base/patience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace mcast {
namespace {

using Step = Patience::Step;
using News = Patience::News;

constexpr Nanos kShort = 20 * kMicro;  // a yield to a rank of the job

class PatienceTest : public testing::Test {
 protected:
  // Makes one wait, which ends in sleep; each yield takes `took`. Returns its steps: a letter for
  // each step that differs from the one before.
  std::string wait(Nanos took = kShort, bool core_each = false) {
    std::string steps;
    News news = News::kNone;
    for (;;) {
      const Patience::Next next = patience_.next(now_, progress_, core_each);
      if (next.news != News::kNone) {
        EXPECT_EQ(news, News::kNone) << "a wait has one piece of news";
        news = next.news;
      }
      const char letter = next.step == Step::kSpin ? 's' : next.step == Step::kYield ? 'y' : 'Z';
      if (steps.empty() || steps.back() != letter) steps += letter;
      if (next.step == Step::kSleep) break;
      now_ += next.step == Step::kYield ? took : kMicro;
      if (next.step == Step::kYield) patience_.on_yield(now_, took);
    }
    now_ += kMilli;
    patience_.end();
    yielded_ += news == News::kYields;
    braked_ += news == News::kBraked;
    return steps;
  }
  // Waits repeatedly until a wait yields, and returns the time for which none yielded. A wait takes
  // 1 to 1.3 ms.
  Nanos braked() {
    const Nanos from = now_;
    Nanos last = from;
    for (int n = 0; n < 10'000; n++) {
      last = now_;
      if (wait() == "yZ") break;
    }
    return last - from;
  }
  // Matches a brake of this length, within the time of the wait that set it.
  static auto About(Nanos brake) {
    return testing::AllOf(testing::Ge(brake - 2 * kMilli), testing::Le(brake + 2 * kMilli));
  }

  Patience patience_{true};
  Nanos now_ = 5 * kSecond;
  uint64_t progress_ = 0;
  int yielded_ = 0, braked_ = 0;
};

TEST_F(PatienceTest, StepsFollowFromTheTimeSinceTheWaitBegan) {
  const struct {
    bool yields, core_each;
    Nanos waited;
    Step step;
  } rows[] = {
      {true, false, 0, Step::kYield},
      {true, false, 299 * kMicro, Step::kYield},
      {true, false, 300 * kMicro, Step::kSleep},
      {true, true, 0, Step::kSpin},
      {true, true, 29 * kMicro, Step::kSpin},
      {true, true, 30 * kMicro, Step::kYield},
      {true, true, 299 * kMicro, Step::kYield},
      {true, true, 300 * kMicro, Step::kSleep},
      {false, false, 0, Step::kSleep},
      {false, true, 29 * kMicro, Step::kSpin},
      {false, true, 30 * kMicro, Step::kSleep},
  };
  for (const auto& row : rows) {
    Patience patience(row.yields);
    (void)patience.next(kSecond, 0, row.core_each);
    EXPECT_EQ(patience.next(kSecond + row.waited, 0, row.core_each).step, row.step)
        << "yields " << row.yields << ", core_each " << row.core_each << ", waited " << row.waited;
  }
}

TEST_F(PatienceTest, ProgressBeginsANewWait) {
  EXPECT_EQ(patience_.next(0, 1, false).news, News::kYields);
  EXPECT_EQ(patience_.next(200 * kMicro, 1, false).news, News::kNone);
  EXPECT_EQ(patience_.next(400 * kMicro, 2, false).news, News::kYields);
  EXPECT_EQ(patience_.next(699 * kMicro, 2, false).step, Step::kYield);
  EXPECT_EQ(patience_.next(700 * kMicro, 2, false).step, Step::kSleep);
}

TEST_F(PatienceTest, TheEndOfAWaitForgetsItsBeginning) {
  (void)patience_.next(0, 1, false);
  patience_.end();
  EXPECT_EQ(patience_.next(kSecond, 1, false).step, Step::kYield);
}

TEST_F(PatienceTest, AYieldToAnotherProgramStopsYieldsForAWhile) {
  EXPECT_EQ(wait(Patience::kForeign - 1), "yZ");
  EXPECT_EQ(braked(), 0);
  EXPECT_EQ(wait(Patience::kForeign), "yZ");
  EXPECT_THAT(braked(), About(Patience::kFirstBrake));
  EXPECT_GT(braked_, 100);
  EXPECT_EQ(braked(), 0) << "none came since";
  EXPECT_EQ(yielded_, 5);
}

// However short the waits are, yields that go to another program take a bounded share of the time.
TEST_F(PatienceTest, TheShareOfTimeLostToAnotherProgramIsBounded) {
  constexpr Nanos kSlice = 4 * kMilli;
  const Nanos begin = now_;
  Nanos lost = 0;
  while (now_ < begin + 10 * kSecond) {
    const auto next = patience_.next(now_, progress_++, false);
    if (next.step == Step::kYield) {
      now_ += kSlice;
      lost += kSlice;
      patience_.on_yield(now_, kSlice);
    }
    now_ += 100 * kMicro;  // time of an operation
    patience_.end();
    if (now_ < begin + 500 * kMilli) {
      EXPECT_LE(lost, 2 * kSlice);
    }
  }
  EXPECT_LE(lost, 7 * kSlice);
}

TEST_F(PatienceTest, TheRestOfABrakedWaitSleeps) {
  ASSERT_EQ(patience_.next(0, 0, false).step, Step::kYield);
  patience_.on_yield(0, Patience::kForeign);
  // The clock of a virtual machine may stand still meanwhile, so the remaining time is not used.
  EXPECT_EQ(patience_.next(10 * kMicro, 0, false).step, Step::kSleep);
}

TEST_F(PatienceTest, TheBrakeDoublesUpToItsLimit) {
  for (const Nanos expected : {200, 400, 800, 1600, 3200, 5000, 5000}) {
    wait(2 * kMilli);
    EXPECT_THAT(braked(), About(expected * kMilli));
  }
}

TEST_F(PatienceTest, ManyGoodWaitsShortenTheBrakeAgain) {
  for (int i = 0; i < 3; i++) {
    wait(2 * kMilli);
    braked();
  }
  // braked() has made one good wait already.
  for (uint32_t i = 1; i < Patience::kForgiven - 1; i++) wait();
  wait(2 * kMilli);
  EXPECT_THAT(braked(), About(8 * Patience::kFirstBrake)) << "one too few";
  for (uint32_t i = 1; i < Patience::kForgiven; i++) wait();
  wait(2 * kMilli);
  EXPECT_THAT(braked(), About(Patience::kFirstBrake));
}

TEST_F(PatienceTest, WaitsThatOnlySpinAreNotBraked) {
  wait(2 * kMilli, true);
  for (int i = 0; i < 100; i++) {
    const auto next = patience_.next(now_, 0, true);
    EXPECT_EQ(next.step, Step::kSpin);
    EXPECT_EQ(next.news, News::kNone);
    patience_.end();
  }
  EXPECT_EQ(wait(kShort, true), "sZ");
}

}  // namespace
}  // namespace mcast
