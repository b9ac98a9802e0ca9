// Division of an engine's link among jobs, in virtual time: two senders with different patterns on
// a link with a fixed number of bytes per millisecond.
#include "runtime/egress_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace mcast::test {
namespace {

constexpr Nanos kStep = 250 * kMicro;
constexpr uint64_t kMebi = 1u << 20;

// Sends as much as the link takes whenever it may, in bursts with pauses between them.
struct Sender {
  std::shared_ptr<EgressShare> share;
  uint64_t burst = UINT64_MAX;  // in bytes, followed by the pause
  Nanos pause = 0;
  uint64_t eager = 1;  // number of parts that it requests of the link's capacity
  uint64_t left = 0;
  Nanos until = 0;
};

// Returns the bytes that each sender has sent after `time`. The link's capacity in a step is
// divided by `eager` among the senders that may send. So without limits, a sender that requests
// more gets more.
std::vector<uint64_t> run(std::vector<Sender>& senders, Nanos time, uint64_t bytes_per_ms,
                          Nanos& now) {
  std::vector<uint64_t> before;
  for (const Sender& s : senders) before.push_back(s.share->bytes());
  for (const Nanos end = now + time; now < end; now += kStep) {
    uint64_t parts = 0;
    std::vector<Sender*> may;
    for (Sender& s : senders) {
      if (s.left == 0 && now >= s.until) s.left = s.burst;
      if (s.left == 0 || !s.share->may_send(now)) continue;
      parts += s.eager;
      may.push_back(&s);
    }
    const uint64_t room = bytes_per_ms * static_cast<uint64_t>(kStep) / kMilli;
    for (Sender* const s : may) {
      const uint64_t bytes = std::min(s->left, room * s->eager / parts);
      s->share->sent(bytes);
      if (s->left != UINT64_MAX) s->left -= bytes;
      if (s->left == 0) s->until = now + s->pause;
    }
  }
  std::vector<uint64_t> sent;
  for (size_t i = 0; i < senders.size(); i++) sent.push_back(senders[i].share->bytes() - before[i]);
  return sent;
}

class EgressShareTest : public testing::Test {
 protected:
  std::shared_ptr<EgressShares> shares_ = std::make_shared<EgressShares>();
  Nanos now_ = kSecond;
};

TEST_F(EgressShareTest, OneJobIsNeverHeld) {
  std::vector<Sender> one{{shares_->add(1, 1)}};
  (void)run(one, kSecond, kMebi, now_);
  EXPECT_EQ(one[0].share->waits(), 0u);
  // Nor is it held beside a job that exists but sends nothing.
  const auto idle = shares_->add(1, 1);
  (void)run(one, kSecond, kMebi, now_);
  EXPECT_EQ(one[0].share->waits(), 0u);
}

TEST_F(EgressShareTest, LargerRequestsGetNoLargerShare) {
  std::vector<Sender> two{{shares_->add(1, 1), UINT64_MAX, 0, 8}, {shares_->add(1, 1)}};
  const auto sent = run(two, 2 * kSecond, 100'000, now_);
  EXPECT_NEAR(static_cast<double>(sent[0]), static_cast<double>(sent[1]), 1.1 * kMebi);
  EXPECT_GT(two[0].share->waits(), 0u);
  EXPECT_EQ(two[1].share->waits(), 0u);
  // The link is always in use: the slower one takes what the other must leave.
  EXPECT_GT(sent[0] + sent[1], uint64_t{195'000'000});
}

TEST_F(EgressShareTest, PausesShorterThanTheSlackCostNothing) {
  // At 100 kB/ms the slack is 10 ms.
  std::vector<Sender> two{{shares_->add(1, 1), UINT64_MAX, 0, 4},
                          {shares_->add(1, 1), 8 * kMebi, 5 * kMilli}};
  const auto sent = run(two, 4 * kSecond, 100'000, now_);
  const double share = static_cast<double>(sent[1]) / static_cast<double>(sent[0] + sent[1]);
  EXPECT_NEAR(share, 0.5, 0.02);
  EXPECT_GT(sent[0] + sent[1], uint64_t{380'000'000});
}

TEST_F(EgressShareTest, IdleJobDelaysOthersBriefly) {
  std::vector<Sender> two{{shares_->add(1, 1)}, {shares_->add(1, 1), 2 * kMebi, kSecond}};
  const auto sent = run(two, 3 * kSecond, 100'000, now_);
  EXPECT_LE(sent[1], 6 * kMebi + 1000);
  // Everything but the time for which an idle job is waited for, three times.
  EXPECT_GT(sent[0] + sent[1], uint64_t{300'000'000} - 3 * 12 * 100'000);
}

TEST_F(EgressShareTest, AClaimDoesNotGrowWhileNothingIsWanted) {
  std::vector<Sender> one{{shares_->add(1, 1)}};
  (void)run(one, 2 * kSecond, 100'000, now_);
  now_ += kSecond;
  // A new job starts, and then the old one returns: neither may make up for the past.
  std::vector<Sender> both{{shares_->add(1, 1)}};
  (void)run(both, 10 * kMilli, 100'000, now_);
  both.push_back(one[0]);
  const auto sent = run(both, 2 * kSecond, 100'000, now_);
  EXPECT_NEAR(static_cast<double>(sent[0]), static_cast<double>(sent[1]), 2.2 * kMebi);
}

TEST_F(EgressShareTest, WeightsDivide) {
  std::vector<Sender> two{{shares_->add(1, 3)}, {shares_->add(2, 1)}};
  const auto sent = run(two, 2 * kSecond, 100'000, now_);
  const double share = static_cast<double>(sent[0]) / static_cast<double>(sent[0] + sent[1]);
  EXPECT_NEAR(share, 0.75, 0.02);
}

TEST_F(EgressShareTest, RanksOfAJobHaveItsShareTogether) {
  std::vector<Sender> ranks{{shares_->add(1, 1)}, {shares_->add(1, 1)}, {shares_->add(1, 1)}};
  for (size_t i : {0, 1}) ranks[i].share->join("job");
  ranks[2].share->join("other");
  const auto sent = run(ranks, 2 * kSecond, 100'000, now_);
  EXPECT_NEAR(static_cast<double>(sent[0] + sent[1]), static_cast<double>(sent[2]), 1.1 * kMebi);
  // A job of the same name of another user is a different job.
  std::vector<Sender> users{{shares_->add(1, 1)}, {shares_->add(1, 1)}, {shares_->add(2, 1)}};
  for (const Sender& s : users) s.share->join("same");
  ranks.clear();
  const auto apart = run(users, 2 * kSecond, 100'000, now_);
  EXPECT_NEAR(static_cast<double>(apart[0] + apart[1]), static_cast<double>(apart[2]), 2.2 * kMebi);
}

TEST_F(EgressShareTest, RemovedJobIsNotWaitedFor) {
  std::vector<Sender> two{{shares_->add(1, 1)}, {shares_->add(1, 1)}};
  (void)run(two, 100 * kMilli, 100'000, now_);
  two.pop_back();
  const uint64_t waits = two[0].share->waits();
  (void)run(two, kSecond, 100'000, now_);
  EXPECT_EQ(two[0].share->waits(), waits);
}

}  // namespace
}  // namespace mcast::test
