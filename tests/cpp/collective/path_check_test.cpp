// Path checks (rounds that test whether multicast reaches all members): when none is due.
#include <gtest/gtest.h>

#include "collective/path_world.h"

namespace mcast::test {
namespace {

// Runs all-gathers for this long; every operation must succeed.
void gather_for(Cluster& c, Nanos length) {
  static uint64_t id = 1;
  for (const Nanos end = c.now() + length; c.now() < end;) {
    Runs runs;
    for (Member r = 0; r < c.size(); r++) runs.push_back(c.allgather(r, 50'000, id));
    id++;
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 300 * kSecond));
    expect_good(runs, c.size());
    c.run_for(100 * kMilli);
  }
}

TEST(PathCheck, RankThatCanNeverJoinIsNotAskedAgain) {
  ClusterOptions options = ranks(3);
  options.sleepy = true;
  options.problem = [](Member r) {
    return std::string(r == 1 ? "setsockopt: no buffer space available" : "");
  };
  Cluster c(options);
  ASSERT_EQ(c.group(0).core().path(), GroupCore::Path::kRing);
  gather_for(c, 60 * kSecond);
  EXPECT_EQ(c.total(Counter::path_checks), 0u);
  EXPECT_LE(c.spins(), 3u);
}

TEST(PathCheck, ReportThatAllDenyDelaysTheNextRound) {
  Cluster c(ranks(3));
  const auto deafen = [&](bool deaf) {
    for (const size_t from : {0u, 1u}) c.net().block_multicast(from, 2, deaf);
  };
  const auto rounds = [&] { return c.group(0).counters().get(Counter::path_checks); };
  // Deaf only until the first round begins: all members then deny the suspicion.
  const auto suspect = [&] {
    const uint64_t before = rounds();
    const Nanos start = c.now();
    deafen(true);
    while (rounds() == before && c.now() < start + 60 * kSecond) gather_for(c, kMilli);
    EXPECT_EQ(rounds(), before + 1);
    deafen(false);
    gather_for(c, 3 * kSecond);
    return start;
  };
  suspect();
  EXPECT_EQ(c.total(Counter::path_switches), 0u);
  const Nanos ended = c.now();
  suspect();
  EXPECT_EQ(c.total(Counter::path_switches), 0u);
  EXPECT_GT(c.now() - ended, 2 * kSecond + 3 * kSecond);  // pause and time of suspect()
}

}  // namespace
}  // namespace mcast::test
