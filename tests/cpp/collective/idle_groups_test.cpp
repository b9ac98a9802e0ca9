// Idle groups cost the other groups of their lane nothing. Counts polls of groups.
#include <gtest/gtest.h>

#include "support/cluster.h"
#include "support/program.h"

namespace mcast::test {
namespace {

// Counts the polls of groups on rank 1 while group 0 works.
uint64_t visits_of_work(ClusterOptions o, size_t idle) {
  Cluster c(o);
  for (size_t g = 0; g < idle; g++) c.add_group(o.group);
  c.run_for(3 * kSecond);  // the frames after their creation are handled
  const uint64_t before = c.lane(1).visits();
  for (uint64_t i = 0; i < 20; i++) {
    Runs runs;
    for (Member r = 0; r < c.size(); r++) {
      runs.push_back(c.broadcast(r, 0, i % 2 == 0 ? 16 : 300'000, i));
    }
    EXPECT_TRUE(c.run([&] { return all_done(runs); }));
    expect_good(runs, c.size());
  }
  return c.lane(1).visits() - before;
}

void expect_no_turns(bool multicast) {
  ClusterOptions o;
  o.ranks = 3;
  o.sleepy = true;
  o.group.multicast.wanted = multicast;
  const uint64_t alone = visits_of_work(o, 0);
  EXPECT_GT(alone, 0u);
  EXPECT_LT(visits_of_work(o, 40), alone + alone / 10);
}

TEST(IdleGroups, AreNotPolledWhileAnotherGroupWorks) { expect_no_turns(true); }

// On the ring, rank 0 tries multicast again from time to time while there are operations.
TEST(IdleGroups, AreNotPolledOnTheRingEither) { expect_no_turns(false); }

TEST(IdleGroups, WorkWhenTheyAreCalled) {
  ClusterOptions o;
  o.ranks = 3;
  o.sleepy = true;
  Cluster c(o);
  for (size_t g = 1; g <= 20; g++) c.add_group(o.group);
  c.run_for(3 * kSecond);
  for (size_t g = 0; g <= 20; g++) {
    Runs runs;
    for (Member r = 0; r < 3; r++) runs.push_back(c.broadcast(r, 2, 50'000, g, kNever, g));
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 5 * kSecond)) << g;
    expect_good(runs, 3);
  }
}

// A group rests between operations and can be removed then.
TEST(IdleGroups, CanBeRemovedWhileTheyRest) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  const size_t g = c.add_group(o.group);
  c.run_for(3 * kSecond);
  for (Member r = 0; r < 2; r++) c.lane(r).remove_group(c.group(r, g).core().params().tag);
  Runs runs = broadcast_all(c, 0, 100'000, 1);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  expect_good(runs, 2);
}

}  // namespace
}  // namespace mcast::test
