// The basic case: every operation delivers exact bytes, with and without loss.
#include <gtest/gtest.h>

#include "support/program.h"

namespace mcast::test {
namespace {

class Sizes : public testing::TestWithParam<std::tuple<uint32_t, size_t>> {};

TEST_P(Sizes, AllgatherAndBroadcastDeliver) {
  const auto [ranks, bytes] = GetParam();
  for (const double loss : {0.0, 0.02, 0.3}) {
    ClusterOptions options;
    options.ranks = ranks;
    options.net.seed = ranks * 1000 + bytes;
    Cluster cluster(options);
    cluster.net().faults().drop = loss;
    Runs runs;
    for (Member r = 0; r < ranks; r++) runs.push_back(cluster.allgather(r, bytes, 1));
    for (Member r = 0; r < ranks; r++) {
      runs.push_back(cluster.broadcast(r, static_cast<Member>(ranks - 1), bytes, 2));
    }
    for (Member r = 0; r < ranks; r++) runs.push_back(cluster.barrier(r));
    ASSERT_TRUE(cluster.run([&] { return all_done(runs); })) << "loss " << loss;
    expect_good(runs, ranks);
    if (loss == 0) {
      EXPECT_EQ(cluster.total(Counter::repair_chunks_sent), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Sizes,
                         testing::Combine(testing::Values(1u, 2u, 3u, 5u, 8u),
                                          testing::Values(0, 1, 1407, 1408, 1409, 20000, 300001,
                                                          2000003)));

// A later operation must not overtake a small one that waits for memory: its memory would be freed
// only after the waiting one.
TEST(RetransmitMemory, IsGivenFirstComeFirstServed) {
  ClusterOptions o;
  o.ranks = 3;
  o.net.receive_budget = o.group.agreed.budget = 1 << 20;
  o.group.agreed.eager = 1 << 20;
  o.group.retransmit = 65536;
  Cluster c(o);
  Runs runs;
  uint64_t id = 0;
  for (const size_t bytes : {61000, 65000, 1000, 60000, 2000, 65000}) {
    for (auto& r : broadcast_all(c, 1, bytes, ++id)) runs.push_back(r);
  }
  finish(c, runs, 10 * kSecond);
  EXPECT_GT(c.total(Counter::retransmit_waits), 0u);
}

}  // namespace
}  // namespace mcast::test
