// Multicast fails after a successful probe: operations stay exact, and the group continues on the
// ring.
#include <gtest/gtest.h>

#include "collective/path_world.h"

namespace mcast::test {
namespace {

class PathSwitch : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, bool>> {};

TEST_P(PathSwitch, DeafMemberMovesTheGroupToTheRing) {
  const uint32_t ranks = std::get<0>(GetParam()), arity = std::get<1>(GetParam());
  const bool everybody = std::get<2>(GetParam());
  ClusterOptions options;
  options.ranks = ranks;
  options.group.arity = arity;
  Cluster cluster(options);
  for (Member r = 0; r < ranks; r++)
    ASSERT_EQ(cluster.group(r).core().path(), GroupCore::Path::kMulticast);
  const auto deaf = static_cast<size_t>(ranks - 1);
  for (size_t from = 0; from < ranks; from++) {
    if (everybody) {
      cluster.net().block_multicast(from, SIZE_MAX);
    } else if (from != deaf) {
      cluster.net().block_multicast(from, deaf);
    }
  }
  uint64_t id = 1;
  Runs runs;
  // Ranks run ahead of each other by different amounts while the cut-over is agreed.
  for (int round = 0; round < 12; round++) {
    for (Member r = 0; r < ranks; r++) {
      runs.push_back(cluster.allgather(r, 50'000 + 7 * static_cast<size_t>(round), id));
      if (round % 3 == r % 3) cluster.run_for(kMilli);
    }
    id++;
    ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, 300 * kSecond)) << "round " << round;
  }
  // Operations continue while the group verifies the failure.
  ASSERT_TRUE(
      cluster.run([&] { return cluster.total(Counter::path_switches) == ranks; }, 10 * kSecond));
  for (int round = 0; round < 3; round++, id++) {
    for (Member r = 0; r < ranks; r++) runs.push_back(cluster.broadcast(r, 0, 30'000, id));
    for (Member r = 0; r < ranks; r++) runs.push_back(cluster.barrier(r));
  }
  ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, 300 * kSecond));
  expect_good(runs, ranks);
  EXPECT_EQ(cluster.total(Counter::path_switches), ranks);
  EXPECT_GT(cluster.total(Counter::ring_bytes_sent), 0u);
  for (Member r = 0; r < ranks; r++) {
    EXPECT_NE(cluster.group(r).core().path_reason().find("no longer hears"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PathSwitch,
                         testing::Combine(testing::Values(2u, 3u, 7u), testing::Values(2u, 32u),
                                          testing::Bool()));

TEST(PathSwitch, APathThatLivesAgainIsUsedAgain) {
  for (const uint32_t ranks : {2u, 5u}) {
    ClusterOptions options;
    options.ranks = ranks;
    options.group.arity = 2;
    Cluster cluster(options);
    for (const bool dead : {true, false, true, false}) {
      silence(cluster, dead);
      const uint64_t switches = cluster.total(Counter::path_switches);
      Runs runs;
      uint64_t id = 1;
      for (int round = 0; round < 200 && cluster.total(Counter::path_switches) == switches;
           round++) {
        for (Member r = 0; r < ranks; r++) runs.push_back(cluster.allgather(r, 50'000, id));
        id++;
        ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, 300 * kSecond));
        cluster.run_for(200 * kMilli);
      }
      for (Member r = 0; r < ranks; r++) runs.push_back(cluster.broadcast(r, 0, 90'000, id));
      ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, 300 * kSecond));
      expect_good(runs, ranks);
      EXPECT_EQ(cluster.total(Counter::path_switches), switches + ranks) << "dead: " << dead;
    }
    const uint64_t by_ring = cluster.total(Counter::ring_bytes_sent);
    Runs last;
    for (Member r = 0; r < ranks; r++) last.push_back(cluster.allgather(r, 50'000, 77));
    ASSERT_TRUE(cluster.run([&] { return all_done(last); }, 300 * kSecond));
    EXPECT_EQ(cluster.total(Counter::ring_bytes_sent), by_ring);
  }
}

TEST(PathSwitch, MistakenReportChangesNothing) {
  ClusterOptions options;
  options.ranks = 4;
  Cluster cluster(options);
  Runs runs;
  for (uint64_t id = 1; id <= 6; id++) {
    wire::Writer body;
    body.put_text("rank 2 no longer hears the multicast of rank 0");
    std::vector<std::byte> frame(wire::kFrameHeader);
    const ConstBytes text = body.bytes();
    wire::write_frame_header(
        frame.data(), {wire::FrameType::kDeaf, 0, 2, cluster.group(2).core().params().tag, 0, 0},
        {&text, 1});
    frame.insert(frame.end(), text.begin(), text.end());
    cluster.net().inject_frame(2, 0, Channel::kControl, frame);
    for (Member r = 0; r < 4; r++) runs.push_back(cluster.allgather(r, 60'000, id));
    ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, 60 * kSecond));
    cluster.run_for(kSecond);
  }
  expect_good(runs, 4);
  EXPECT_GT(cluster.total(Counter::path_checks), 0u);
  EXPECT_EQ(cluster.total(Counter::path_switches), 0u);
  EXPECT_EQ(cluster.total(Counter::ring_bytes_sent), 0u);
}

// Multicast did not work yet when the group was made.
TEST(PathSwitch, AGroupMadeOnTheRingMovesToMulticast) {
  ClusterOptions options;
  options.ranks = 3;
  options.prepare = [](SimNetwork& net) { net.block_multicast(1, 2); };
  Cluster cluster(options);
  ASSERT_EQ(cluster.group(0).core().path(), GroupCore::Path::kRing);
  cluster.net().block_multicast(1, 2, false);
  Runs runs;
  for (uint64_t id = 1; id <= 40; id++) {
    for (Member r = 0; r < 3; r++) runs.push_back(cluster.allgather(r, 60'000, id));
    ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, 60 * kSecond));
    cluster.run_for(500 * kMilli);
  }
  expect_good(runs, 3);
  EXPECT_EQ(cluster.total(Counter::path_switches), 3u);
  EXPECT_NE(cluster.group(1).core().path_reason().find("reaches every rank again"),
            std::string::npos);
}

TEST(PathSwitch, HeavyRandomLossIsNotDeafness) {
  ClusterOptions options;
  options.ranks = 4;
  Cluster cluster(options);
  cluster.net().faults().drop = 0.5;
  Runs runs;
  for (uint64_t id = 1; id <= 40; id++) {
    for (Member r = 0; r < 4; r++) runs.push_back(cluster.allgather(r, 20'000, id));
  }
  ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, 600 * kSecond));
  expect_good(runs, 4);
  EXPECT_EQ(cluster.total(Counter::path_switches), 0u);
}

TEST(PathSwitch, FailureDuringTheSwitchEndsWaitingPosts) {
  const auto owned = silenced(3);
  Cluster& cluster = *owned;
  // The top never receives the ready frames of its children.
  cluster.net().set_frame_hook([](size_t, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    return !(wire::parse_frame(frame, h) && h.type == wire::FrameType::kSwitchReady);
  });
  Runs runs;
  for (uint64_t id = 1; id <= 8; id++) {
    for (Member r = 0; r < 3; r++) runs.push_back(cluster.allgather(r, 60'000, id, 30 * kSecond));
    cluster.run_for(200 * kMilli);
  }
  cluster.net().kill(2);
  ASSERT_TRUE(cluster.run(
      [&] {
        return std::all_of(runs.begin(), runs.end(),
                           [](const auto& r) { return r->done() || r->rank == 2; });
      },
      60 * kSecond));
}

// The switch itself is the only activity, and posts wait for it.
TEST(PathSwitch, AStoppedRankDuringTheSwitchIsNoticed) {
  const auto owned = silenced(3);
  Cluster& cluster = *owned;
  bool asked = false;
  cluster.net().set_frame_hook([&](size_t, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (wire::parse_frame(frame, h) && h.type == wire::FrameType::kSwitch && to == 2) asked = true;
    return !asked || to != 2;
  });
  Runs runs;
  for (uint64_t id = 1; id <= 4; id++) {
    for (Member r = 0; r < 3; r++) runs.push_back(cluster.allgather(r, 60'000, id));
    ASSERT_TRUE(cluster.run([&] { return all_done(runs); }));
  }
  ASSERT_TRUE(cluster.run([&] { return asked; }));
  cluster.pause(2, true);
  for (Member r = 0; r < 2; r++) runs.push_back(cluster.allgather(r, 60'000, 5));
  ASSERT_TRUE(cluster.run([&] { return runs[12]->done() && runs[13]->done(); }, 5 * kSecond));
  EXPECT_EQ(runs[12]->status.code(), Code::kPeerLost) << runs[12]->status.to_string();
}

}  // namespace
}  // namespace mcast::test
