// Callers that help, host threads, and other threads that post, fail, close and stop at the same
// time: two ranks in one process, each with its own host threads. Lets a thread sanitizer check how
// threads hand over a lane.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "shm/host_world.h"
#include "shm/lane.h"
#include "support/until.h"

namespace mcast::test {
namespace {

constexpr size_t kHelpBytes = 1000;
constexpr uint32_t kHelpRanks = 2;

// An operation of one rank.
struct HelpRun {
  std::vector<std::byte> memory = std::vector<std::byte>(kHelpBytes);
  Status status;
  std::atomic<bool> over{false};
};

struct HelpRank {
  std::unique_ptr<PeerRegistry> registry;
  std::shared_ptr<HostShared> shared = std::make_shared<HostShared>();
  std::shared_ptr<Counters> counters = std::make_shared<Counters>();
  std::shared_ptr<HostLane> lane;

  // Waits like McastWork::wait().
  void wait(const HelpRun& run) const {
    while (!run.over) {
      const bool helped = lane->help([&] { return run.over.load(); }, monotonic() + 200 * kMilli);
      if (!helped && !run.over) std::this_thread::yield();
    }
  }
};

class LaneHelp : public testing::Test {
 protected:
  void SetUp() override {
    for (HelpRank& rank : ranks_) {
      auto registry = PeerRegistry::make(monotonic);
      ASSERT_TRUE(registry.ok()) << registry.status().to_string();
      rank.registry = std::move(registry).value();
    }
    auto segment = Segment::create("mcast-test", ControlBlock::bytes(kHelpRanks));
    ASSERT_TRUE(segment.ok());
    segment_ = std::move(segment).value();
    for (uint32_t r = 0; r < kHelpRanks; r++) {
      HelpRank& rank = ranks_[r];
      rank.shared->block = ControlBlock(segment_.data(), kHelpRanks);
      rank.shared->peers.resize(kHelpRanks);
      auto peer = rank.registry->find(ranks_[1 - r].registry->address());
      ASSERT_TRUE(peer.ok()) << peer.status().to_string();
      rank.shared->peers[1 - r] = std::move(peer).value();
      HostParams params;
      params.name = "g";
      params.self = static_cast<Member>(r);
      params.size = kHelpRanks;
      rank.lane = std::make_shared<HostLane>(params, 20 * kSecond, Patience(true), rank.shared,
                                             *rank.registry, rank.counters, [](const Status&) {});
      rank.registry->thread(0).add(rank.lane);
    }
  }
  void TearDown() override {
    for (HelpRank& rank : ranks_) {
      if (rank.registry) rank.registry->stop();
    }
  }

  // A broadcast from `root`; its bytes have the value `content`.
  static Post broadcast(HelpRun& run, Member self, Sequence sequence, Member root,
                        std::byte content) {
    if (self == root) run.memory.assign(kHelpBytes, content);
    const Slice whole{std::make_shared<Region>(run.memory.data(), kHelpBytes, nullptr), 0,
                      kHelpBytes};
    Post p;
    p.sequence = sequence;
    p.descriptor = {wire::Kind::kBroadcast, 0, root, kHelpBytes, "broadcast"};
    p.posted = monotonic();
    p.timeout = kNever;
    if (self == root) p.input = whole;
    p.outputs = {whole};
    p.done = [&run](const Status& status) {
      run.status = status;
      run.over = true;
    };
    return p;
  }

  HelpRank ranks_[kHelpRanks];
  Segment segment_;
};

TEST_F(LaneHelp, AwaitedAndOtherPostsOfTwoRanksDeliver) {
  constexpr Sequence kPosts = 1000;
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < kHelpRanks; r++) {
    threads.emplace_back([this, r] {
      const HelpRank& rank = ranks_[r];
      Rng rng(r + 1);
      std::vector<std::unique_ptr<HelpRun>> runs;
      for (Sequence s = 0; s < kPosts; s++) {
        runs.push_back(std::make_unique<HelpRun>());
        HelpRun& run = *runs.back();
        rank.lane->enqueue(broadcast(run, static_cast<Member>(r), s, s % kHelpRanks, std::byte(s)));
        const bool awaited = rng.chance(0.6);
        rank.lane->run(awaited ? std::optional(s) : std::nullopt);
        if (awaited || rng.chance(0.3)) rank.wait(run);
      }
      for (Sequence s = 0; s < kPosts; s++) {
        HelpRun& run = *runs[s];
        EXPECT_TRUE(until([&] { return run.over.load(); }, "an operation that nobody waits for"));
        EXPECT_TRUE(run.status.ok()) << run.status.to_string();
        EXPECT_EQ(run.memory, std::vector(kHelpBytes, std::byte(s)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// If two threads wait for operations of one lane, one of them drives it, and both operations end.
TEST_F(LaneHelp, TwoThreadsOfARankWait) {
  constexpr Sequence kPosts = 200;
  for (Sequence s = 0; s < kPosts; s += 2) {
    HelpRun runs[kHelpRanks][2];
    for (uint32_t r = 0; r < kHelpRanks; r++) {
      for (Sequence i = 0; i < 2; i++) {
        ranks_[r].lane->enqueue(
            broadcast(runs[r][i], static_cast<Member>(r), s + i, 1, std::byte(s + i)));
      }
    }
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < kHelpRanks; r++) {
      for (Sequence i = 0; i < 2; i++) {
        threads.emplace_back([&, r, i] {
          ranks_[r].lane->run(s + i);
          ranks_[r].wait(runs[r][i]);
          EXPECT_EQ(runs[r][i].memory, std::vector(kHelpBytes, std::byte(s + i)));
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// An operation that the other rank never calls ends while a caller helps.
class LaneHelpEnds : public LaneHelp {
 protected:
  void wait_until_helper_sleeps() {
    EXPECT_TRUE(until([&] { return ranks_[0].counters->get(Counter::shm_sleeps) > 0; },
                      "the helper to sleep"));
  }
  void expect_end(const std::function<void()>& act, Code code) {
    HelpRun run;
    ranks_[0].lane->enqueue(broadcast(run, 0, 0, 1, {}));
    std::thread helper([&] {
      ranks_[0].lane->run(Sequence{0});
      ranks_[0].wait(run);
    });
    wait_until_helper_sleeps();
    act();
    helper.join();
    EXPECT_EQ(run.status.code(), code) << run.status.to_string();
  }
};

TEST_F(LaneHelpEnds, AbortEndsAHelper) {
  expect_end([&] { ranks_[0].lane->fail(Status(Code::kAborted, "enough"), 0); }, Code::kAborted);
}

TEST_F(LaneHelpEnds, FailureOfTheOtherRankEndsAHelper) {
  expect_end([&] { ranks_[1].lane->fail(Status(Code::kAborted, "enough"), 1); }, Code::kAborted);
}

TEST_F(LaneHelpEnds, CloseByForceEndsAHelper) {
  std::atomic<int> closed{0};
  expect_end([&] { ranks_[0].lane->close(monotonic(), true, [&](const Status&) { closed++; }); },
             Code::kClosed);
  EXPECT_TRUE(until([&] { return closed == 1; }, "the close to end"));
}

// The engine's end joins the host threads; a caller that helps continues without them.
TEST_F(LaneHelpEnds, HelperGoesOnWithoutHostThread) {
  expect_end(
      [&] {
        ranks_[0].registry->stop();
        HelpRun theirs;
        ranks_[1].lane->enqueue(broadcast(theirs, 1, 0, 1, std::byte{7}));
        ranks_[1].lane->run(Sequence{0});
        ranks_[1].wait(theirs);
      },
      Code::kOk);
}

}  // namespace
}  // namespace mcast::test
