// The cut-over between two paths. When it is agreed, ranks have made different numbers of calls. It
// takes effect after the last operation that any rank has started, and a rank that makes an earlier
// call later takes the old path for it.
#include <gtest/gtest.h>

#include "collective/path_world.h"

namespace mcast::test {
namespace {

constexpr uint64_t kLead = 3;  // number of operations by which one rank is ahead

// The operation of the rank's last cut-over.
uint64_t line_of(Cluster& c, Member r) {
  const std::string& why = c.group(r).core().path_reason();
  uint64_t line = 0;
  return sscanf(why.c_str(), "switched at operation %lu:", &line) == 1 ? line : UINT64_MAX;
}

// Calls of all ranks, one of which is `kLead` operations ahead of the others.
class Calls {
 public:
  Calls(Cluster& c, Member ahead) : c_(c), ahead_(ahead), next_(c.size(), 1) {
    for (uint64_t i = 0; i < kLead; i++) post(ahead_);
  }
  // Makes one more call on each rank and waits for all operations that all ranks have called.
  void round() {
    for (Member r = 0; r < c_.size(); r++) post(r);
    settle();
  }
  // The ranks behind make the calls that the others have made already.
  void catch_up() {
    for (Member r = 0; r < c_.size(); r++) {
      while (next_[r] < next_[ahead_]) post(r);
    }
    settle();
    ASSERT_TRUE(all_done(runs_));
    expect_good(runs_, c_.size());
  }
  uint64_t called(Member r) const { return next_[r] - 1; }

 private:
  void post(Member r) {
    const uint64_t id = next_[r]++;
    runs_.push_back(id % 3 == 0 ? c_.broadcast(r, static_cast<Member>(id % c_.size()), 90'000, id)
                                : c_.allgather(r, 40'000, id));
  }
  void settle() {
    const uint64_t by_all = *std::min_element(next_.begin(), next_.end()) - 1;
    ASSERT_TRUE(c_.run(
        [&] {
          return std::all_of(runs_.begin(), runs_.end(),
                             [&](const auto& r) { return r->done() || r->id > by_all; });
        },
        300 * kSecond))
        << "hangs";
  }

  Cluster& c_;
  Member ahead_;
  std::vector<uint64_t> next_;  // by rank, the id of its next call
  Runs runs_;
};

// parameters: ranks, arity, whether to the ring (otherwise from it to multicast), the rank ahead
class PathLine : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, bool, Member>> {};

TEST_P(PathLine, ComesAfterTheLastOperationThatAnybodyHasStarted) {
  const uint32_t ranks = std::get<0>(GetParam()), arity = std::get<1>(GetParam());
  const bool to_ring = std::get<2>(GetParam());
  const Member who = std::get<3>(GetParam());
  const auto ahead = static_cast<Member>(who % ranks);
  ClusterOptions options;
  options.ranks = ranks;
  options.group.arity = arity;
  const std::unique_ptr<Cluster> owned =
      to_ring ? std::make_unique<Cluster>(options) : made_on_ring(options);
  Cluster& c = *owned;
  if (to_ring) silence(c);
  ASSERT_EQ(c.group(0).core().path(),
            to_ring ? GroupCore::Path::kMulticast : GroupCore::Path::kRing);
  Calls calls(c, ahead);
  for (int round = 0; round < 60 && c.total(Counter::path_switches) == 0; round++) {
    calls.round();
    if (HasFatalFailure()) return;
    c.run([&, until = c.now() + 250 * kMilli] {
      return c.now() >= until || c.total(Counter::path_switches) > 0;
    });
  }
  ASSERT_TRUE(c.run([&] { return c.total(Counter::path_switches) == ranks; }, 5 * kSecond));
  const uint64_t by_ring = c.total(Counter::ring_bytes_sent);
  EXPECT_EQ(by_ring == 0, to_ring);
  for (Member r = 0; r < ranks; r++) EXPECT_EQ(line_of(c, r), calls.called(ahead)) << "rank " << r;
  calls.catch_up();  // before the cut-over: the old path
  if (HasFatalFailure()) return;
  EXPECT_EQ(c.total(Counter::ring_bytes_sent) == by_ring, to_ring);
  const uint64_t below = c.total(Counter::ring_bytes_sent);
  for (Member r = 0; r < ranks; r++) c.allgather(r, 40'000, 1000);
  c.run_for(5 * kSecond);
  EXPECT_EQ(c.total(Counter::ops_completed), ranks * (calls.called(ahead) + 1));
  EXPECT_EQ(c.total(Counter::ring_bytes_sent) > below, to_ring);
  EXPECT_EQ(c.total(Counter::path_switches), ranks);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PathLine,
                         testing::Combine(testing::Values(2u, 7u), testing::Values(2u, 32u),
                                          testing::Bool(), testing::Values(0, 1, 6)));

// A rank that was away while the group moved to the ring and back finds two cut-overs, and makes
// calls before, between and after them.
TEST(PathLines, RankBehindTwoCutoversPassesBoth) {
  for (const Member late : {1, 2, 3}) {  // not the top, which checks again while it has work
    ClusterOptions options;
    options.ranks = 4;
    options.group.arity = 2;
    Cluster c(options);
    Runs runs;
    std::vector<uint64_t> next(4, 1);
    const auto post = [&](Member r) {
      const uint64_t id = next[r]++;
      runs.push_back(c.allgather(r, 60'000, id));
    };
    const auto others = [&] {
      for (Member r = 0; r < 4; r++) {
        if (r != late) post(r);
      }
    };
    silence(c);
    for (int i = 0; i < 4; i++) {
      for (Member r = 0; r < 4; r++) post(r);
      ASSERT_TRUE(c.run([&] { return all_done(runs); }));
    }
    others();  // one by multicast that waits for the late rank
    ASSERT_TRUE(c.run([&] { return c.total(Counter::path_switches) == 4; }, 10 * kSecond));
    EXPECT_EQ(line_of(c, 0), 5u);
    others();  // two by the ring
    others();
    silence(c, false);
    ASSERT_TRUE(c.run([&] { return c.total(Counter::path_switches) == 8; }, 30 * kSecond));
    EXPECT_EQ(line_of(c, 0), 7u);
    others();  // by multicast again
    for (int i = 0; i < 4; i++) post(late);
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 300 * kSecond)) << "rank " << late;
    expect_good(runs, 4);
    // Each block takes three hops; only the two operations between the cut-overs use the ring.
    EXPECT_EQ(c.total(Counter::ring_bytes_sent), 2u * 4 * 3 * 60'000);
  }
}

}  // namespace
}  // namespace mcast::test
