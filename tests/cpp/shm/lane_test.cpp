// Hands a lane from its driver to the host thread one step at a time. The test plays the driver,
// the peer and the host thread in turn, in one thread.
#include "shm/lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "shm/host_world.h"
#include "shm/message_runs.h"
#include "support/until.h"

namespace mcast::test {
namespace {

constexpr size_t kBytes = 100;
constexpr uint32_t kManyRanks = 1u << 20;  // no machine has as many cores

class SteppedLane final : public HostLane {
 public:
  using HostLane::HostLane;
  std::function<void()> before_letting_go;  // runs once
  std::function<void()> instead_of_yielding;

 private:
  void yield_core() override {
    if (instead_of_yielding) instead_of_yielding();
  }
  void letting_go() override {
    if (const auto act = std::exchange(before_letting_go, nullptr)) act();
  }
};

// The other rank, without a thread or a process of its own.
class Peer final : public HostPort {
 public:
  Peer(const ControlBlock& block, uint8_t lane) : core(params(lane), block, *this, counters_) {}
  Status read(Member, uint64_t, std::byte*, size_t) override { return {}; }
  void wake(Member member, HostWaiter waiter) override { woken.emplace_back(member, waiter); }
  void wake_all() override { woken.emplace_back(0, HostWaiter::kThread); }
  Nanos now() override { return monotonic(); }

  std::vector<std::pair<Member, HostWaiter>> woken;

 private:
  static HostParams params(uint8_t lane) {
    HostParams p;
    p.name = "g";
    p.lane = lane;
    p.self = 1;
    p.size = 2;
    return p;
  }
  Counters counters_;

 public:
  HostCore core;
};

class HostLaneTest : public testing::Test {
 protected:
  explicit HostLaneTest(uint8_t lane = 0) : which_(lane) {}
  void SetUp() override {
    auto registry = PeerRegistry::make(monotonic);
    ASSERT_TRUE(registry.ok()) << registry.status().to_string();
    registry_ = std::move(registry).value();
    auto self = registry_->find(registry_->address());
    ASSERT_TRUE(self.ok()) << self.status().to_string();
    self_ = std::move(self).value();
    auto segment = Segment::create("mcast-test", ControlBlock::bytes(2));
    ASSERT_TRUE(segment.ok());
    auto shared = std::make_shared<HostShared>();
    shared->segment = std::move(segment).value();
    shared->block = ControlBlock(shared->segment.data(), 2);
    shared->peers = {nullptr, self_};
    peer_ = std::make_unique<Peer>(shared->block, which_);
    HostParams params;
    params.name = "g";
    params.lane = which_;
    params.size = 2;
    // The registry's threads do not know the lane; the test calls the host thread's polls itself.
    lane_shared_ = shared;
    lane_ = std::make_unique<SteppedLane>(params, 20 * kSecond, Patience(true), shared, *registry_,
                                          counters_, [this](const Status&) { told_ = true; });
  }
  void TearDown() override {
    lane_.reset();
    if (registry_) registry_->stop();
  }

  // A broadcast from the other rank, as called by rank `m`.
  Post broadcast(std::vector<std::byte>& memory, bool root, int& ended) {
    const Slice whole{std::make_shared<Region>(memory.data(), kBytes, nullptr), 0, kBytes};
    Post p;
    p.descriptor = {wire::Kind::kBroadcast, 0, 1, kBytes, "broadcast"};
    p.posted = monotonic();
    p.timeout = kNever;
    if (root) p.input = whole;
    p.outputs = {whole};
    p.done = [this, &ended](const Status& status) {
      ended++;
      status_ = status;
    };
    return p;
  }
  void peer_publishes() {
    peer_->core.post(broadcast(theirs_, true, theirs_ended_));
    peer_->core.progress(true);
  }
  uint32_t rings() const { return self_->mailbox().bells[which_].rings.load(); }

  uint64_t counted(Counter which) const { return counters_->get(which); }

  const uint8_t which_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::unique_ptr<PeerRegistry> registry_;
  std::shared_ptr<const HostPeer> self_;
  std::shared_ptr<HostShared> lane_shared_;
  std::unique_ptr<Peer> peer_;
  std::unique_ptr<SteppedLane> lane_;
  std::vector<std::byte> ours_{kBytes}, theirs_{kBytes, std::byte{7}};
  int ended_ = 0, theirs_ended_ = 0;
  bool told_ = false;  // the failure listener was called
  Status status_;
};

// Otherwise the host thread would sleep for the rest of its tick.
TEST_F(HostLaneTest, ARingBeforeTheDriverHasLetGoIsNotLost) {
  lane_->enqueue(broadcast(ours_, false, ended_));
  uint32_t before = 0;
  lane_->before_letting_go = [&] {
    peer_publishes();
    ASSERT_EQ(peer_->woken.size(), 1u);
    EXPECT_EQ(peer_->woken[0], std::pair(Member{0}, HostWaiter::kThread));
    EXPECT_GT(lane_->turn(), monotonic());  // host thread: rung, but the lane is driven
    before = rings();
  };
  lane_->run();
  EXPECT_EQ(ended_, 0);
  ASSERT_GT(rings(), before);  // so it does not sleep and polls again
  lane_->turn();
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(ours_, theirs_);
}

TEST_F(HostLaneTest, AFailureBeforeTheDriverHasLetGoIsNotLost) {
  lane_->enqueue(broadcast(ours_, false, ended_));
  uint32_t before = 0;
  lane_->before_letting_go = [&] {
    peer_->core.fail(Status(Code::kAborted, "enough"), 1);
    ASSERT_EQ(peer_->woken.size(), 1u);
    lane_->turn();
    before = rings();
  };
  lane_->run();
  EXPECT_EQ(ended_, 0);
  ASSERT_GT(rings(), before);
  lane_->turn();
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), Code::kAborted) << status_.to_string();
}

// Otherwise the lane would stay locked in a live process for which its peers wait.
TEST_F(HostLaneTest, MemoryThatEndsInATurnEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child has no control block
  lane_->enqueue(broadcast(ours_, false, ended_));
  lane_->before_letting_go = [] { throw std::bad_alloc(); };
  EXPECT_DEATH(lane_->run(), "std::bad_alloc");
  EXPECT_DEATH(lane_->help([] { return true; }, kNever), "std::bad_alloc");
}

// Callbacks run outside the core: they may post and close, and may find that the group refuses
// posts.
TEST_F(HostLaneTest, ACallbackMayPostAndClose) {
  std::vector<std::byte> memory(kBytes);
  int again = 0, closed = 0;
  Post first = broadcast(ours_, false, ended_);
  first.done = [&, counts = std::move(first.done)](const Status& status) {
    counts(status);
    EXPECT_TRUE(told_);
    Post second = broadcast(memory, false, again);
    second.sequence = 1;
    lane_->enqueue(std::move(second));
    lane_->run();
    lane_->close(kNever, false, [&](const Status&) { closed++; });
    EXPECT_EQ(again, 0) << "one callback ran inside another";
  };
  lane_->enqueue(std::move(first));
  peer_->core.fail(Status(Code::kAborted, "enough"), 1);
  lane_->run();
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(again, 1);
  EXPECT_EQ(closed, 1);
}

// A helper that has waited long enough releases the lane like any other driver.
TEST_F(HostLaneTest, ARingBeforeAHelperHasLetGoIsNotLost) {
  lane_->enqueue(broadcast(ours_, false, ended_));
  uint32_t before = 0;
  lane_->before_letting_go = [&] {
    peer_publishes();
    lane_->turn();
    before = rings();
  };
  EXPECT_TRUE(lane_->help([] { return true; }, kNever));
  EXPECT_EQ(ended_, 0);
  ASSERT_GT(rings(), before);
  lane_->turn();
  EXPECT_EQ(ended_, 1);
}

// The driver's last poll covers requests made before it, so no further poll is needed.
TEST_F(HostLaneTest, PollCoveredByTheDriverWakesNoOne) {
  lane_->enqueue(broadcast(ours_, false, ended_));
  bool looked = false;
  uint32_t before = 0;
  EXPECT_TRUE(lane_->help(
      [&] {
        lane_->turn();  // refused, before the needs are armed
        looked = true;
        before = rings();
        return true;
      },
      kNever));
  EXPECT_TRUE(looked);
  EXPECT_EQ(rings(), before);
  peer_publishes();
  ASSERT_EQ(peer_->woken.size(), 1u);  // the need was armed
  lane_->turn();
  EXPECT_EQ(ended_, 1);
}

// A peer is woken when the data that it has armed for is there, not before, and only once.
TEST_F(HostLaneTest, PeerIsWokenForItsNeed) {
  Post post = broadcast(ours_, true, ended_);
  post.descriptor.root = 0;
  Post theirs = broadcast(theirs_, false, theirs_ended_);
  theirs.descriptor.root = 0;
  peer_->core.post(std::move(theirs));
  peer_->core.progress(true);
  ASSERT_TRUE(peer_->core.arm(HostWaiter::kThread));
  EXPECT_EQ(counted(Counter::shm_wakes), 0u);
  const uint32_t before = rings();
  lane_->enqueue(std::move(post));
  lane_->run();
  EXPECT_EQ(counted(Counter::shm_wakes), 1u);
  EXPECT_EQ(rings(), before + 1);
  EXPECT_EQ(counted(Counter::shm_rounds), 1u);
  peer_->core.disarm();
  peer_->core.progress(true);
  peer_->core.deliver();
  EXPECT_EQ(theirs_ended_, 1);
  EXPECT_EQ(counted(Counter::shm_sleeps), 0u) << "nobody has helped";
}

// A helper sleeps until it is woken, or until its patience or a tick ends.
TEST_F(HostLaneTest, AHelperWithNothingToDoSleeps) {
  lane_->enqueue(broadcast(ours_, false, ended_));
  lane_->help([] { return false; }, monotonic() + 5 * kMilli);
  const uint64_t first = counted(Counter::shm_sleeps);
  EXPECT_LE(first, 5u);
  lane_->help([&] { return counted(Counter::shm_sleeps) > first; }, kNever);
  const uint64_t sleeps = counted(Counter::shm_sleeps);
  EXPECT_EQ(sleeps, first + 1);
  peer_publishes();
  lane_->help([this] { return ended_ > 0; }, kNever);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(counted(Counter::shm_sleeps), sleeps) << "there was something to do";
}

// The other rank runs on the core that the helper yields.
TEST_F(HostLaneTest, HelperYieldsToTheRankItWaitsFor) {
  registry_->note_ranks(kManyRanks);
  int yields = 0;
  lane_->instead_of_yielding = [&] {
    yields++;
    peer_publishes();
  };
  lane_->enqueue(broadcast(ours_, false, ended_));
  EXPECT_TRUE(lane_->help([this] { return ended_ > 0; }, kNever));
  EXPECT_EQ(yields, 1);
  EXPECT_EQ(counted(Counter::waits_yielded), 1u);
  EXPECT_EQ(counted(Counter::waits_braked), 0u);
  EXPECT_EQ(counted(Counter::shm_sleeps), 0u);
  EXPECT_TRUE(peer_->woken.empty()) << "no need is armed while the helper looks itself";
}

// Another program takes the core for a time slice; later waits do not yield for a while.
TEST_F(HostLaneTest, HelperStopsYieldingToOtherPrograms) {
  registry_->note_ranks(kManyRanks);
  Nanos yields = 0;
  lane_->instead_of_yielding = [&] {
    yields++;
    const Nanos until = monotonic() + Patience::kForeign;
    while (monotonic() < until) {
    }
  };
  lane_->enqueue(broadcast(ours_, false, ended_));
  const Nanos begin = monotonic();
  constexpr uint64_t kWaits = 20;
  for (uint64_t i = 0; i < kWaits; i++) {
    EXPECT_TRUE(lane_->help([] { return false; }, monotonic() + 4 * kMilli));
  }
  EXPECT_LE(yields, 1 + (monotonic() - begin) / Patience::kFirstBrake);
  EXPECT_EQ(counted(Counter::waits_yielded), static_cast<uint64_t>(yields));
  // On a busy machine a sleep may end, at the tick of the host's thread, within a call: then the
  // call waits once more.
  const uint64_t waits = counted(Counter::waits_yielded) + counted(Counter::waits_braked);
  EXPECT_GE(waits, kWaits);
  EXPECT_LE(waits, kWaits + counted(Counter::shm_sleeps));
}

// A group of 2 in a job of many ranks: its ranks do not spin on cores that others need.
TEST_F(HostLaneTest, RegistryCountsTheRanksOfTheJob) {
  registry_->note_ranks(1);
  const bool before = registry_->core_each();
  registry_->note_ranks(kManyRanks);
  EXPECT_FALSE(registry_->core_each());
  registry_->note_ranks(2);
  EXPECT_FALSE(registry_->core_each()) << "the group of many is still there";
  if (std::getenv("LOCAL_WORLD_SIZE") == nullptr) {
    EXPECT_TRUE(before);
  }
}

// A caller that posts and waits polls itself, so peers do not wake anyone for it in between.
TEST_F(HostLaneTest, AwaitedPostArmsNoNeed) {
  lane_->enqueue(broadcast(ours_, false, ended_));
  lane_->run(Sequence{0});
  peer_publishes();
  EXPECT_TRUE(peer_->woken.empty());
  EXPECT_TRUE(lane_->help([this] { return ended_ > 0; }, kNever));
  EXPECT_EQ(ours_, theirs_);
  EXPECT_EQ(counted(Counter::shm_sleeps), 0u);
}

// The next poll is that of the host thread's tick.
TEST_F(HostLaneTest, AwaitedPostWithoutAWaiterIsTheHostThreads) {
  lane_->enqueue(broadcast(ours_, false, ended_));
  lane_->run(Sequence{0});
  EXPECT_LE(lane_->turn(), monotonic() + kHostTick);
  EXPECT_EQ(ended_, 0);
  peer_publishes();
  ASSERT_EQ(peer_->woken.size(), 1u) << "that turn has armed the need";
  EXPECT_EQ(peer_->woken[0], std::pair(Member{0}, HostWaiter::kThread));
  lane_->turn();
  EXPECT_EQ(ended_, 1);
}

// A post that another thread makes meanwhile may not have a caller that waits.
TEST_F(HostLaneTest, PostBesideAnAwaitedOneIsTheHostThreads) {
  std::vector<std::byte> memory(kBytes);
  int other = 0;
  lane_->enqueue(broadcast(ours_, false, ended_));
  lane_->before_letting_go = [&] {
    Post second = broadcast(memory, false, other);
    second.sequence = 1;
    lane_->enqueue(std::move(second));
    lane_->run();
  };
  lane_->run(Sequence{0});
  peer_publishes();
  ASSERT_EQ(peer_->woken.size(), 1u);
  EXPECT_EQ(peer_->woken[0], std::pair(Member{0}, HostWaiter::kThread));
}

// The caller finds its operation complete and does not wait. The other operations in flight are
// left to the host thread.
TEST_F(HostLaneTest, AwaitedPostThatIsOverLeavesTheRestToTheHostThread) {
  std::vector<std::byte> memory(kBytes);
  int other = 0;
  peer_publishes();
  lane_->enqueue(broadcast(ours_, false, ended_));
  Post second = broadcast(memory, false, other);
  second.sequence = 1;
  lane_->enqueue(std::move(second));
  lane_->run(Sequence{0});
  EXPECT_EQ(ended_, 1);
  Post theirs = broadcast(theirs_, true, theirs_ended_);
  theirs.sequence = 1;
  peer_->core.post(std::move(theirs));
  peer_->core.progress(true);
  ASSERT_EQ(peer_->woken.size(), 1u);
  EXPECT_EQ(peer_->woken[0], std::pair(Member{0}, HostWaiter::kThread));
}

// Runs a real host thread, which has gone to sleep for an unlimited time.
TEST_F(HostLaneTest, AwaitedPostWithoutAWaiterEndsWithAColdHostThread) {
  static std::atomic<Nanos> ahead;
  static std::atomic<int> readings;
  ahead = 0;
  auto made = PeerRegistry::make([]() -> Nanos {
    readings++;
    return monotonic() + ahead;
  });
  ASSERT_TRUE(made.ok());
  const std::unique_ptr<PeerRegistry> registry = std::move(made).value();
  HostParams params;
  params.name = "g";
  params.lane = which_;
  params.size = 2;
  const auto lane = std::make_shared<HostLane>(params, 20 * kSecond, Patience(true), lane_shared_,
                                               *registry, counters_, [](const Status&) {});
  ASSERT_TRUE(until([] { return readings > 0; }, "the host threads to begin"));
  ahead = 10 * kSecond;  // as if nothing was posted for that long
  // A warm host thread reads the clock every tick.
  ASSERT_TRUE(until(
      [] {
        const int before = readings;
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * kHostTick / kMilli));
        return readings == before;
      },
      "the host thread to sleep for good"));
  registry->thread(which_).add(lane);
  std::atomic<int> ended{0};
  Post post = broadcast(ours_, false, ended_);
  post.done = [&](const Status& status) {
    EXPECT_TRUE(status.ok()) << status.to_string();
    ended++;
  };
  lane->enqueue(std::move(post));
  lane->run(Sequence{0});
  peer_publishes();
  EXPECT_TRUE(until([&] { return ended == 1; }, "the broadcast to end"));
  EXPECT_EQ(ours_, theirs_);
  registry->thread(which_).remove(lane.get());
  registry->stop();
}

class MessageLaneTest : public HostLaneTest {
 protected:
  MessageLaneTest() : HostLaneTest(kMessageLane) {}
  void peer_posts(const std::shared_ptr<MessageRun>& run) {
    peer_->core.post_message(post_of(run));
    peer_->core.progress(true);
    peer_->core.deliver();
  }
};

TEST_F(MessageLaneTest, AMessageBeforeTheDriverHasLetGoIsNotLost) {
  const auto r = a_receive(0, 1, 3, 1000);
  lane_->enqueue(post_of(r));
  uint32_t before = 0;
  lane_->before_letting_go = [&] {
    peer_posts(a_send(1, 0, 3, 1000, 7));
    ASSERT_EQ(peer_->woken.size(), 1u);
    EXPECT_EQ(peer_->woken[0], std::pair(Member{0}, HostWaiter::kThread));
    lane_->turn();
    before = rings();
  };
  lane_->run();
  EXPECT_EQ(r->ends, 0);
  ASSERT_GT(rings(), before);
  lane_->turn();
  expect_got(*r, 1, 7);
}

// No thread drives the lane or waits there.
TEST_F(MessageLaneTest, ARingThatIsFullIsEmptiedByTheHostThread) {
  constexpr int kSends = 20'000;
  MessageRuns sends;
  for (int i = 0; i < kSends; i++) {
    sends.push_back(a_send(1, 0, 3, 4, 7));
    peer_posts(sends.back());
  }
  const auto over = [&] {
    return std::count_if(sends.begin(), sends.end(), [](const auto& s) { return s->ends == 1; });
  };
  EXPECT_GT(over(), 1000);
  EXPECT_LT(over(), kSends);
  ASSERT_EQ(peer_->woken.size(), 1u) << "once, when it was full";
  EXPECT_EQ(peer_->woken[0], std::pair(Member{0}, HostWaiter::kThread));
  for (int i = 0; i < 100 && over() < kSends; i++) {
    lane_->turn();
    peer_->core.progress(true);
    peer_->core.deliver();
  }
  EXPECT_EQ(over(), kSends);
  EXPECT_GT(counted(Counter::messages_kept), 10'000u);
}

// A caller that waits only for a message sleeps, and is woken by its own futex.
TEST_F(MessageLaneTest, AHelperThatWaitsForAMessageSleeps) {
  const auto r = a_receive(0, 1, 3, 1000);
  lane_->enqueue(post_of(r));
  EXPECT_TRUE(lane_->help([this] { return counted(Counter::shm_sleeps) == 1; }, kNever));
  peer_posts(a_send(1, 0, 3, 1000, 7));
  EXPECT_TRUE(lane_->help([&] { return r->ends > 0; }, kNever));
  expect_got(*r, 1, 7);
}

}  // namespace
}  // namespace mcast::test
