// Detects silent peers. The clock and the peers' replies are the test's.
#include "shm/peer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/reach.h"

namespace mcast::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Nanos kLimit = 8 * kSecond;  // one request per second

class PeerWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    auto page = Segment::create("mcast-test", kHostMailboxBytes);
    ASSERT_TRUE(page.ok()) << page.status().to_string();
    peer_.page = std::move(page).value();
    watch_.begin(now_, {});
  }
  void TearDown() override { add_reach(counters_); }

  Status look(Nanos later) {
    now_ += later;
    watch_.begin(now_, {1});
    return watch_.look_at(1, peer_);
  }
  void answer() { peer_.mailbox().answered = peer_.mailbox().asked.load(); }

  Counters counters_;
  HostPeer peer_;
  PeerWatch watch_{2, kLimit, counters_};
  Nanos now_ = 100 * kSecond;
};

TEST_F(PeerWatchTest, AsksAtIntervalsWhileItAnswers) {
  for (int tick = 0; tick < 200; tick++) {
    ASSERT_TRUE(look(kHostTick).ok());
    answer();
  }
  EXPECT_EQ(counters_.get(Counter::pings_sent), 20u);
  EXPECT_EQ(peer_.mailbox().asked.load(), 20u);
  EXPECT_THAT(watch_.unresponsive(), IsEmpty());
  EXPECT_EQ(watch_.looked(), now_);
}

TEST_F(PeerWatchTest, SilenceAddsUpToTheLimit) {
  Nanos silent = 0;
  ASSERT_TRUE(look(kHostTick).ok());  // a request was just sent
  while (silent + kHostTick < kLimit) {
    silent += kHostTick;
    ASSERT_TRUE(look(kHostTick).ok()) << silent;
    EXPECT_EQ(watch_.unresponsive().size(), silent >= kSecond ? 1u : 0u) << silent;
  }
  EXPECT_TRUE(is_error(look(kHostTick), ErrorId::rank_silent,
                       {{"rank", "1"}, {"limit", seconds_text(kLimit)}}));
  EXPECT_EQ(peer_.mailbox().asked.load(), 1u) << "one question at a time";
}

TEST_F(PeerWatchTest, TheOwnSleepIsNotTheSilenceOfOthers) {
  ASSERT_TRUE(look(kHostTick).ok());
  EXPECT_TRUE(look(3600 * kSecond).ok());
  EXPECT_THAT(watch_.unresponsive(), IsEmpty());
}

TEST_F(PeerWatchTest, SilenceEndsWithAnAnswerOrWhenNothingIsWaitedFor) {
  for (int tick = 0; tick < 20; tick++) ASSERT_TRUE(look(kHostTick).ok());
  EXPECT_THAT(watch_.unresponsive(), ElementsAre(1));
  answer();
  ASSERT_TRUE(look(kHostTick).ok());
  EXPECT_THAT(watch_.unresponsive(), IsEmpty());
  for (int tick = 0; tick < 20; tick++) ASSERT_TRUE(look(kHostTick).ok());
  EXPECT_THAT(watch_.unresponsive(), ElementsAre(1));
  watch_.begin(now_ += kHostTick, {});
  answer();
  ASSERT_TRUE(look(kHostTick).ok());
  EXPECT_THAT(watch_.unresponsive(), IsEmpty());
}

}  // namespace
}  // namespace mcast::test
