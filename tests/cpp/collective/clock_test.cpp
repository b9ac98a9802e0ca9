// Clocks. Clocks of different hosts start at different values (as in every random schedule), and
// processes do not run for a while, one of them or all, so that all their timers are late at once.
// A process that stops for less than the liveness limit costs only time. One that stops longer is
// lost to the others, and all ranks raise. Bytes are never wrong.
// MCAST_TEST_SEED=1234 mcast_test_collective --gtest_filter='*Clocks*'
#include <gtest/gtest.h>

#include "base/rng.h"
#include "support/errors.h"
#include "support/program.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr Nanos kMinute = 60 * kSecond;

// A few operations of all kinds, called by all ranks within some milliseconds, on a network with a
// small loss. `strike` runs at a random event of the network.
class ClockRun {
 public:
  explicit ClockRun(uint64_t seed, Nanos timeout = kNever)
      : rng_(seed ^ 0x6a756d70ULL), timeout_(timeout) {
    ClusterOptions options = ranks(static_cast<uint32_t>(2 + rng_.below(4)), rng_.chance(0.25));
    options.net.seed = seed;
    options.group.agreed.eager = rng_.chance(0.5) ? 32768 : 2000;
    cluster_ = std::make_unique<Cluster>(options);
    cluster_->net().faults().drop = rng_.chance(0.5) ? 0 : 0.1;
    victim_ = static_cast<Member>(rng_.below(size()));
  }

  uint32_t size() const { return cluster_->size(); }
  Member victim() const { return victim_; }
  Cluster& cluster() { return *cluster_; }
  Rng& rng() { return rng_; }
  const Runs& runs() const { return runs_; }
  Nanos struck_at() const { return struck_at_; }

  // Runs until the strike.
  void begin(std::function<void()> strike) {
    const uint64_t trigger = rng_.below(400);
    const auto count = [this, trigger, events = uint64_t{0}, strike]() mutable {
      if (events++ != trigger) return;
      cluster_->at(cluster_->now(), [this, strike] {
        struck_at_ = cluster_->now();
        strike();
      });
    };
    auto shared = std::make_shared<std::function<void()>>(count);
    cluster_->net().set_frame_hook([shared](size_t, size_t, Channel, ConstBytes) {
      (*shared)();
      return true;
    });
    const size_t calls = 2 + rng_.below(4);
    for (uint64_t id = 1; id <= calls; id++) {
      const uint64_t kind = rng_.below(6);
      const size_t sizes[] = {1, 1409, 40'000, 200'000};
      const size_t bytes = sizes[rng_.below(4)];
      for (Member r = 0; r < size(); r++) runs_.push_back(call(r, kind, bytes, id));
      if (rng_.chance(0.5)) cluster_->run_for(static_cast<Nanos>(rng_.below(2 * kMilli)));
    }
    if (cluster_->run([this] { return struck_at_ != kNever; }, 20 * kMilli)) return;
    struck_at_ = cluster_->now();
    strike();
  }
  bool end(Nanos limit) {
    return cluster_->run([this] { return all_done(runs_); }, limit);
  }
  // Returns "" if every operation has ended on every rank with exact bytes, or with an error if
  // `may_fail`.
  std::string verdict(bool may_fail) const {
    for (const auto& run : runs_) {
      const std::string who =
          "rank " + std::to_string(run->rank) + " op " + std::to_string(run->id) + ": ";
      if (run->calls != 1) return who + std::to_string(run->calls) + " ends";
      if (!run->status.ok() && !may_fail) return who + run->status.to_string();
      if (!run->status.ok() && !run->guards_intact) return who + "guard bytes overwritten";
      const std::string wrong = run->status.ok() ? run->check(size()) : "";
      if (!wrong.empty()) return who + wrong;
    }
    return cluster_->spins() > 3 ? "a lane span" : "";
  }
  bool failed() const {
    return std::any_of(runs_.begin(), runs_.end(), [](const auto& r) { return !r->status.ok(); });
  }
  // Once one rank has raised, the next call raises on every rank. Returns "" or names a rank on
  // which it does not.
  std::string next_call_fails() {
    Runs later;
    for (Member r = 0; r < size(); r++) later.push_back(cluster_->barrier(r));
    if (!cluster_->run([&] { return test::all_done(later); }, 10 * kSecond)) return "later: hangs";
    for (const auto& run : later) {
      if (run->status.ok()) return "rank " + std::to_string(run->rank) + " goes on alone";
    }
    return "";
  }

 private:
  std::shared_ptr<OpRun> call(Member r, uint64_t kind, size_t bytes, uint64_t id) {
    const auto root = static_cast<Member>(id % size());
    if (kind == 0) return cluster_->broadcast(r, root, bytes, id, timeout_);
    if (kind < 3) return cluster_->allgather(r, bytes, id, timeout_);
    const wire::Kind ways[] = {wire::Kind::kReduceScatter, wire::Kind::kAllreduce,
                               wire::Kind::kReduce};
    return cluster_->reduction(r, ways[kind - 3], root, bytes, id, timeout_);
  }

  Rng rng_;
  Nanos timeout_;
  Member victim_ = 0;
  Nanos struck_at_ = kNever;
  Runs runs_;
  std::unique_ptr<Cluster> cluster_;
};

TEST(Clocks, OneThatJumpsAheadCostsNothing) {
  for_seeds(seeds(300), [](uint64_t seed) -> std::string {
    ClockRun one(seed);
    const Nanos jumps[] = {kMilli, kSecond, kLiveness + kSecond, kMinute, 24 * 60 * kMinute};
    one.begin([&] {
      for (uint64_t n = 1 + one.rng().below(3); n > 0; n--) {
        one.cluster().jump(one.victim(), jumps[one.rng().below(5)]);
      }
    });
    return one.end(20 * kSecond) ? one.verdict(false) : "hangs";
  });
}

TEST(Clocks, ProcessStoppedForMinutesIsLostToAllOrNone) {
  uint64_t lost = 0;
  const Seeds all = seeds(200);
  for_seeds(all, [&](uint64_t seed) -> std::string {
    ClockRun one(seed);
    const Nanos aways[] = {kLiveness / 4, 2 * kLiveness, kMinute, 5 * kMinute};
    const Nanos away = aways[one.rng().below(4)];
    one.begin([&] {
      one.cluster().pause(one.victim(), true);
      one.cluster().at(one.cluster().now() + away,
                       [&] { one.cluster().pause(one.victim(), false); });
    });
    if (!one.end(away + kLiveness + 3 * kSecond)) return "hangs";
    lost += one.failed() ? 1 : 0;
    if (const std::string wrong = one.verdict(away > kLiveness); !wrong.empty()) return wrong;
    for (const auto& run : one.runs()) {
      const bool late =
          run->rank != one.victim() && run->done_at > one.struck_at() + kLiveness + 2 * kSecond;
      if (away > kLiveness && late) return "rank " + std::to_string(run->rank) + " raises late";
    }
    if (!one.failed()) return "";
    // Its own calls may all have ended before it was stopped; it receives nothing until it is back.
    one.cluster().run_for(std::max<Nanos>(0, one.struck_at() + away - one.cluster().now()));
    return one.next_call_fails();
  });
  if (all.size() >= 100) {
    EXPECT_GT(lost, all.size() / 10) << "else the schedules test nothing";
  }
}

// A host or a whole job is suspended: no rank has missed anything.
TEST(Clocks, AllProcessesStoppedForMinutesContinue) {
  for_seeds(seeds(100), [](uint64_t seed) -> std::string {
    ClockRun one(seed);
    const Nanos away = kMinute + static_cast<Nanos>(one.rng().below(kMinute));
    one.begin([&] {
      Cluster& c = one.cluster();
      for (Member r = 0; r < one.size(); r++) {
        c.pause(r, true);
        const auto later = static_cast<Nanos>(one.rng().below(kLiveness / 4));
        c.at(c.now() + away + later, [&c, r] { c.pause(r, false); });
      }
    });
    return one.end(away + 20 * kSecond) ? one.verdict(false) : "hangs";
  });
}

// The time limits of a rank whose clock jumps have all passed. The rank inquires first. If all
// ranks have called, the operations succeed; if one has not, all ranks name it.
TEST(Clocks, JumpBeyondTheTimeLimitEndsNoRunningOperation) {
  for_seeds(seeds(200), [&](uint64_t seed) -> std::string {
    ClockRun one(seed, kMinute);
    one.begin([&] { one.cluster().jump(one.victim(), 2 * kMinute); });
    return one.end(10 * kSecond) ? one.verdict(false) : "hangs";
  });
}

TEST(Clocks, JumpBeyondTheTimeLimitNamesTheLateRank) {
  for (const Member jumps : {0, 1, 3}) {
    for (const size_t bytes : {100, 300'000}) {
      Cluster c(ranks(4));
      Runs runs;
      for (const Member r : {0, 1, 3}) runs.push_back(c.allgather(r, bytes, 1, kMinute));
      c.run_for(50 * kMilli);
      c.jump(jumps, 2 * kMinute);
      ASSERT_TRUE(c.run([&] { return all_done(runs); }, 3 * kSecond)) << "rank " << jumps;
      runs.push_back(c.allgather(2, bytes, 1, kMinute));
      ASSERT_TRUE(c.run([&] { return all_done(runs); }, kSecond));
      for (const auto& run : runs) {
        EXPECT_TRUE(is_error(run->status, ErrorId::ranks_late, {{"ranks", "2"}}));
      }
    }
  }
}

}  // namespace
}  // namespace mcast::test
