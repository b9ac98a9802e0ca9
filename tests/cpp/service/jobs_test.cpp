// Jobs without an asker, driven by a clock of the test: the door is closed, and records are handed
// in as if they had come through it.
#include "service/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/clock.h"
#include "service/service_world.h"

namespace mcast::service {
namespace {

using test::eventually;
using test::Ranks;
using ::testing::HasSubstr;

constexpr LinkId kLink = 7;
constexpr uint32_t kLocalhost = 0x7f000001;

class JobsTest : public ::testing::Test {
 protected:
  JobsTest() {
    options_.config.interface = "=lo";
    jobs_.on_record(kLink, kLocalhost, encode(ranks_.ask()), now_);
  }
  Report report() const {
    Report report;
    jobs_.describe(report);
    return report;
  }
  void pass(Nanos time) {
    now_ += time;
    jobs_.advance(now_);
  }

  Options options_;
  Door door_;
  Ranks ranks_{2};
  Nanos now_ = monotonic_now();
  Jobs jobs_{options_, door_, test::simple_deal(), [] {}};
};

TEST_F(JobsTest, OneThatNobodyAsksForAnyMoreEndsAfterAMinuteOfSilence) {
  ASSERT_EQ(report().jobs.size(), 1u);
  pass(10 * Jobs::kLonely);
  EXPECT_TRUE(report().ended.empty()) << "its asker is there";
  jobs_.on_link_end(kLink, false);
  EXPECT_FALSE(report().jobs[0].asked_for);
  pass(Jobs::kLonely);
  ASSERT_EQ(report().ended.size(), 1u);
  EXPECT_THAT(report().ended[0].why, HasSubstr("its asker is gone and nothing has come for 60"));
  EXPECT_TRUE(eventually([&] {
    pass(0);
    return jobs_.empty();
  }));
}

TEST_F(JobsTest, TheSameGroupMayAskAgainWhileItsOldJobIsStillThere) {
  jobs_.on_record(kLink + 1, kLocalhost, encode(ranks_.ask()), now_);
  ASSERT_EQ(report().jobs.size(), 2u);
  jobs_.on_record(kLink, kLocalhost, encode(wire::Bye{}), now_);
  EXPECT_TRUE(eventually([&] {
    pass(0);
    return report().jobs.size() == 1;
  }));
  EXPECT_EQ(report().jobs[0].number, 2u);
}

TEST_F(JobsTest, NobodyIsLetInWhileItDrains) {
  jobs_.drain();
  jobs_.on_record(kLink + 1, kLocalhost, encode(ranks_.ask()), now_);
  EXPECT_EQ(report().jobs.size(), 1u);
  EXPECT_EQ(report().refused[static_cast<size_t>(Refusal::draining)], 1u);
}

}  // namespace
}  // namespace mcast::service
