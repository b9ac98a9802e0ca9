// The main road: every op delivers exact bytes without loss and with it.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/cluster.h"

namespace mcast::test {
namespace {

using Runs = std::vector<std::shared_ptr<OpRun>>;

bool all_done(const Runs& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const auto& r) { return r->done(); });
}

void expect_good(const Runs& runs, uint32_t size) {
  for (const auto& r : runs) {
    ASSERT_EQ(r->calls, 1) << "rank " << r->rank;
    ASSERT_TRUE(r->status.ok()) << r->status.to_string();
    ASSERT_EQ(r->check(size), "");
  }
}

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

}  // namespace
}  // namespace mcast::test
