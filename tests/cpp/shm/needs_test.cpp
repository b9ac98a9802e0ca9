// When a rank is woken for a need, seen from both sides of the need.
#include "shm/needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shm/failure_record.h"
#include "shm/memory_block.h"

namespace mcast::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Wake = std::pair<Member, HostWaiter>;

class Wakes final : public HostPort {
 public:
  std::vector<Wake> woken;

 private:
  Status read(Member, uint64_t, std::byte*, size_t) override { return {}; }
  void wake(Member member, HostWaiter waiter) override { woken.emplace_back(member, waiter); }
  void wake_all() override {}
  Nanos now() override { return 0; }
};

// Rank 0 sleeps; ranks 1 and 2 act.
class NeedsTest : public testing::Test {
 protected:
  void publish(Member m, uint64_t rounds) {
    block_.state(0, m).published = rounds;
    needs(m).wake_for_published();
  }
  void consume(Member m, uint64_t rounds) {
    block_.state(0, m).consumed = rounds;
    needs(m).wake_for_consumed();
  }
  Needs needs(Member m) { return Needs(LaneView(block_, 0, m), port_); }
  static HostNeed all(uint64_t rounds) {
    return {HostWaiter::kCaller, HostNeed::Kind::kAll, 0, rounds};
  }

  const MemoryBlock memory_{3};
  const ControlBlock block_ = memory_.block();
  Wakes port_;
  Needs needs_ = needs(0);
};

TEST_F(NeedsTest, AllAreWaitedForAndTheLastOneWakesOnce) {
  block_.state(0, 0).published = 2;
  ASSERT_TRUE(needs_.arm(all(2), Needs::kNoRoom, HostWaiter::kCaller));
  publish(1, 2);
  publish(2, 1);
  EXPECT_THAT(port_.woken, IsEmpty());
  publish(2, 2);
  publish(2, 3);
  EXPECT_THAT(port_.woken, ElementsAre(Wake{0, HostWaiter::kCaller}));
}

TEST_F(NeedsTest, OnlyTheMemberThatIsMeantWakes) {
  const HostNeed need{HostWaiter::kThread, HostNeed::Kind::kFrom, 2, 1};
  ASSERT_TRUE(needs_.arm(need, Needs::kNoRoom, HostWaiter::kThread));
  publish(1, 1);
  EXPECT_THAT(port_.woken, IsEmpty());
  publish(2, 1);
  EXPECT_THAT(port_.woken, ElementsAre(Wake{0, HostWaiter::kThread}));
}

TEST_F(NeedsTest, SlowestRankDeterminesTheRoom) {
  block_.state(0, 0).consumed = 9;
  ASSERT_TRUE(needs_.arm({}, 4, HostWaiter::kThread));
  consume(1, 7);
  publish(1, 9);
  EXPECT_THAT(port_.woken, IsEmpty());
  consume(2, 4);
  EXPECT_THAT(port_.woken, ElementsAre(Wake{0, HostWaiter::kThread}));
}

TEST_F(NeedsTest, AvailableDataIsNotWaitedFor) {
  for (const Member m : {0, 1, 2}) block_.state(0, m).published = 1;
  EXPECT_FALSE(needs_.arm(all(1), Needs::kNoRoom, HostWaiter::kCaller));
  EXPECT_EQ(block_.state(0, 0).need_published, 0u);
  EXPECT_FALSE(needs_.arm({}, 0, HostWaiter::kCaller));
  EXPECT_TRUE(needs_.arm(all(2), Needs::kNoRoom, HostWaiter::kCaller));
  needs_.disarm();
  for (const Member m : {1, 2, 0}) publish(m, 2);
  EXPECT_THAT(port_.woken, IsEmpty());
}

TEST_F(NeedsTest, NobodySleepsInAGroupThatHasFailed) {
  EXPECT_TRUE(claim_failure(block_.failure(), Status(Code::kAborted, "why not"), 1, 1));
  EXPECT_FALSE(needs_.arm(all(1), Needs::kNoRoom, HostWaiter::kCaller));
}

}  // namespace
}  // namespace mcast::test
