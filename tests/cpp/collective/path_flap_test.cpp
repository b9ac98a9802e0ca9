// Multicast fails, recovers and fails again while operations run: for all ranks or between some,
// sometimes with a switch that duplicates datagrams. Every operation ends on every rank with exact
// bytes, whatever path the group takes, and all agree on the path at the end.
// MCAST_TEST_SEED=1234 mcast_test_collective --gtest_filter='*PathFlaps*'
#include <gtest/gtest.h>

#include "base/rng.h"
#include "collective/path_world.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

class FlapRun {
 public:
  FlapRun(uint64_t seed, bool reduce) : rng_(seed ^ 0x666c6170ULL), reduce_(reduce) {
    ClusterOptions options;
    options.ranks = static_cast<uint32_t>(2 + rng_.below(5));
    options.net.seed = seed;
    options.group.arity = rng_.chance(0.5) ? 2 : 32;
    options.group.lane = reduce ? 1 : 0;
    cluster_ = std::make_unique<Cluster>(options);
    SimFaults& faults = cluster_->net().faults();
    faults.drop = rng_.chance(0.5) ? 0 : 0.05;
    faults.duplicate = rng_.chance(0.5) ? 0 : 1;
    faults.copies = 2;
    faults.copy_delay = kSecond;
    next_.assign(options.ranks, 1);
  }

  std::string run() {
    for (int phase = 0; phase < 6; phase++) {
      flap(phase % 2 == 0);
      const Nanos lengths[] = {20 * kMilli, kSecond, 4 * kSecond, 15 * kSecond};
      const Nanos until = cluster_->now() + lengths[rng_.below(4)];
      while (cluster_->now() < until) {
        if (!round()) return "hangs in phase " + std::to_string(phase);
      }
    }
    flap(false);
    // All started operations are completed, on a path that all ranks agree on.
    for (Member r = 0; r < cluster_->size(); r++) {
      while (next_[r] < *std::max_element(next_.begin(), next_.end())) call(r);
    }
    if (!cluster_->run([this] { return all_done(runs_); }, 60 * kSecond)) return "hangs at the end";
    cluster_->run_for(5 * kSecond);
    for (const auto& run : runs_) {
      if (run->calls != 1 || !run->status.ok()) return run->status.to_string();
      if (const std::string wrong = run->check(cluster_->size()); !wrong.empty()) return wrong;
    }
    for (Member r = 1; r < cluster_->size(); r++) {
      const std::string& mine = cluster_->group(r).core().path_reason();
      const std::string& top = cluster_->group(0).core().path_reason();
      if (switches() > 0 && mine != top) return "rank " + std::to_string(r) + ": " + mine;
    }
    if (switches() % cluster_->size() != 0) return std::to_string(switches()) + " switches";
    return cluster_->spins() > 3 ? "a lane span" : "";
  }
  uint64_t switches() const { return cluster_->total(Counter::path_switches); }

 private:
  // Changes the multicast of all ranks, or all that one rank sends, or all that one rank receives.
  void flap(bool dead) {
    silence(*cluster_, false);
    for (const auto& [from, to] : blocks_) cluster_->net().block_multicast(from, to, false);
    blocks_.clear();
    if (!dead) return;
    const uint64_t kind = rng_.below(3);
    const size_t one = rng_.below(cluster_->size());
    for (size_t other = 0; other < cluster_->size(); other++) {
      if (kind == 0) blocks_.emplace_back(other, SIZE_MAX);
      if (kind == 1 && other != one) blocks_.emplace_back(other, one);
    }
    if (kind == 2) blocks_.emplace_back(one, SIZE_MAX);
    for (const auto& [from, to] : blocks_) cluster_->net().block_multicast(from, to);
  }

  // Every rank calls until it has caught up with the one that is ahead; then the operations that
  // all have called end. Returns false if they do not.
  bool round() {
    const auto ahead = static_cast<Member>(rng_.below(cluster_->size()));
    if (rng_.chance(0.3)) call(ahead);
    for (Member r = 0; r < cluster_->size(); r++) {
      const uint64_t most = *std::max_element(next_.begin(), next_.end());
      do {
        call(r);
      } while (next_[r] < most);
      if (rng_.chance(0.2)) cluster_->run_for(static_cast<Nanos>(rng_.below(3 * kMilli)));
    }
    const uint64_t by_all = *std::min_element(next_.begin(), next_.end());
    const auto over = [&] {
      return std::all_of(runs_.begin(), runs_.end(),
                         [&](const auto& r) { return r->done() || r->id >= by_all; });
    };
    const bool ended = cluster_->run(over, 60 * kSecond);
    if (rng_.chance(0.7)) cluster_->run_for(static_cast<Nanos>(rng_.below(400 * kMilli)));
    return ended;
  }

  void call(Member r) {
    const uint64_t id = next_[r]++;
    const size_t sizes[] = {700, 20'000, 60'000};
    const size_t bytes = sizes[mix64(id) % 3];
    if (reduce_ && id % 2 == 0) {
      runs_.push_back(cluster_->reduction(r, wire::Kind::kAllreduce, 0, 2 * bytes, id));
    } else if (id % 3 == 0) {
      const auto root = static_cast<Member>(id % cluster_->size());
      runs_.push_back(cluster_->broadcast(r, root, 2 * bytes, id));
    } else {
      runs_.push_back(cluster_->allgather(r, bytes, id));
    }
  }

  Rng rng_;
  bool reduce_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::pair<size_t, size_t>> blocks_;
  std::vector<uint64_t> next_;  // by rank, the id of its next call
  Runs runs_;
};

class PathFlaps : public testing::TestWithParam<bool> {};

TEST_P(PathFlaps, EveryOperationIsExact) {
  uint64_t switches = 0;
  const Seeds all = seeds(12);
  for_seeds(all, [&](uint64_t seed) {
    FlapRun one(seed, GetParam());
    const std::string wrong = one.run();
    switches += one.switches();
    return wrong;
  });
  if (all.size() >= 6) {
    EXPECT_GE(switches, all.size()) << "else the schedules test nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Lane, PathFlaps, testing::Bool(),
                         [](const auto& p) { return p.param ? "reduce" : "multicast"; });

}  // namespace
}  // namespace mcast::test
