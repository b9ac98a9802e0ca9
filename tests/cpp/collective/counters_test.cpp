// Expected counters of schedules that are known chunk by chunk. tools/reach.py checks that some
// test raises each counter; the counters here are those that no other test asserts.
#include <gtest/gtest.h>

#include "support/program.h"

namespace mcast::test {
namespace {

// Traffic of the network since the group's creation.
struct Wire {
  uint64_t datagrams = 0, datagram_bytes = 0, arrived_bytes = 0;
  uint64_t frames = 0, frame_bytes = 0;
};

TEST(Counters, BytesAreThoseOnTheWire) {
  Wire wire;
  ClusterOptions o = ranks(5);
  o.prepare = [&wire](SimNetwork& net) {
    net.set_datagram_hook([&wire](size_t from, size_t to, ConstBytes d) {
      if (from == to) wire.datagrams++, wire.datagram_bytes += d.size();
      // Drops one chunk in ten, so that there are repairs.
      wire::DatagramHeader h;
      if (from != to && is_data(d, h) && h.chunk % 10 == 3) return SimNetwork::Verdict::kDrop;
      if (from != to) wire.arrived_bytes += d.size();
      return SimNetwork::Verdict::kPass;
    });
    net.set_frame_hook([&wire](size_t, size_t, Channel, ConstBytes frame) {
      wire.frames++, wire.frame_bytes += frame.size();
      return true;
    });
  };
  Cluster c(o);
  Runs runs;
  for (Member r = 0; r < 5; r++) {
    runs.push_back(c.broadcast(r, 3, 200'000, 1));
    runs.push_back(c.allgather(r, 700, 2));
    runs.push_back(c.allgather(r, 50'000, 3));
    runs.push_back(c.reduction(r, wire::Kind::kAllreduce, 0, 150'000, 4));
  }
  finish(c, runs);
  c.run_for(kSecond);  // data in transit arrives
  EXPECT_EQ(c.total(Counter::datagrams_sent), wire.datagrams);
  EXPECT_EQ(c.total(Counter::datagram_bytes_sent), wire.datagram_bytes);
  EXPECT_EQ(c.total(Counter::datagram_bytes_received), wire.arrived_bytes);
  EXPECT_EQ(c.total(Counter::frames_sent), wire.frames);
  EXPECT_EQ(c.total(Counter::frame_bytes_sent), wire.frame_bytes);
  EXPECT_EQ(c.total(Counter::frames_received), wire.frames);
  EXPECT_EQ(c.total(Counter::frame_bytes_received), wire.frame_bytes);
  EXPECT_EQ(c.total(Counter::repair_bytes_sent) == 0, false);
  EXPECT_EQ(c.total(Counter::ops_posted), 20u);
  EXPECT_EQ(c.total(Counter::ops_completed), 20u);
}

// Rank 0's engine also serves another job, which wants to send but has sent nothing yet. Rank 0
// gets a MiB ahead of that job, then waits until it no longer counts as a sender.
TEST(Counters, ALaneWaitsForItsShareOfTheLink) {
  const auto shares = std::make_shared<EgressShares>();
  const auto own = shares->add(1, 1), other = shares->add(2, 1);
  ClusterOptions o = ranks(3);
  o.accounts = [&](Member r) {
    LaneAccounts accounts;
    if (r == 0) accounts.share = own;
    return accounts;
  };
  Cluster c(o);
  EXPECT_TRUE(other->may_send(c.now()));
  Runs runs;
  for (Member r = 0; r < 3; r++) runs.push_back(c.broadcast(r, 0, 2 * EgressShares::kAhead, 1));
  finish(c, runs);
  EXPECT_GT(c.group(0).counters().get(Counter::share_waits), 0u);
  EXPECT_GT(own->waits(), 0u);
}

// Two of three receivers lack a chunk. Rank 1 requests it from its ring neighbour 2, which lacks it
// too. The root, from which rank 2 requests it at once, multicasts it again for both.
TEST(Counters, NeighbourWithoutTheChunkRepliesNotHave) {
  Cluster c(ranks(3));
  c.net().set_datagram_hook([lost = 0](size_t from, size_t to, ConstBytes d) mutable {
    wire::DatagramHeader h;
    if (from == to || !is_data(d, h) || h.chunk != 40 || lost == 2)
      return SimNetwork::Verdict::kPass;
    lost++;
    return SimNetwork::Verdict::kDrop;
  });
  finish(c, broadcast_all(c, 0, 150'000, 1));
  const auto counted = [&](Member r, Counter which) { return c.group(r).counters().get(which); };
  EXPECT_EQ(counted(2, Counter::not_have_sent), 1u);
  EXPECT_EQ(counted(1, Counter::not_have_received), 1u);
  EXPECT_EQ(c.total(Counter::not_have_sent), 1u);
  EXPECT_EQ(c.total(Counter::not_have_received), 1u);
  // Rank 1's first and second request, and rank 2's.
  EXPECT_EQ(c.total(Counter::fetches_sent), 3u);
  EXPECT_EQ(c.total(Counter::fetches_received), 3u);
  EXPECT_EQ(c.total(Counter::remulticast_chunks) + c.total(Counter::repair_chunks_sent) / 2, 1u);
}

// Small operations of which a late rank has received nothing: exactly the requested chunks are sent
// again.
TEST(Counters, EarlyChunksAreThoseThatWereLost) {
  Cluster c(ranks(3));
  Runs runs;
  c.net().block_multicast(0, 2);
  for (uint64_t id = 1; id <= 30; id++) {
    for (Member r = 0; r < 2; r++) runs.push_back(c.broadcast(r, 0, 3 * 1408, id));
  }
  c.run_for(kSecond);
  EXPECT_EQ(c.group(0).counters().get(Counter::early_chunks_sent), 90u);
  EXPECT_EQ(c.group(2).counters().get(Counter::early_chunks_received), 90u);
  EXPECT_EQ(c.group(2).counters().get(Counter::chunks_staged), 90u);
  c.net().block_multicast(0, 2, false);
  for (uint64_t id = 1; id <= 30; id++) runs.push_back(c.broadcast(2, 0, 3 * 1408, id));
  finish(c, runs);
  EXPECT_EQ(c.total(Counter::early_chunks_sent), 90u);
  EXPECT_EQ(c.total(Counter::fetches_sent), 0u);
}

// A root that waits for a late rank stalls once, at the end of the data that it may send unasked.
TEST(Counters, AWaitForCreditIsOneStall) {
  ClusterOptions o = ranks(3);
  o.group.agreed.eager = 10 * 1408;
  o.group.agreed.chunk = 1408;
  o.group.agreed.budget = 1 << 20;
  Cluster c(o);
  Runs runs;
  for (Member r = 0; r < 2; r++) runs.push_back(c.broadcast(r, 0, 140 * 1408, 1));
  c.run_for(kSecond);
  EXPECT_EQ(c.total(Counter::credit_stalls), 1u);
  EXPECT_EQ(c.group(1).counters().get(Counter::chunks_placed), 80u) << "as eight roots";
  runs.push_back(c.broadcast(2, 0, 140 * 1408, 1));
  finish(c, runs);
  EXPECT_EQ(c.total(Counter::credit_stalls), 1u) << "all the rest was within the window";
  // Small operations are sent unasked.
  finish(c, allgather_all(c, 500, 2));
  EXPECT_EQ(c.total(Counter::credit_stalls), 1u);
}

// The window is reduced at most once per window of progress, by a fifth, and not below an eighth.
TEST(Counters, WindowsAreCutByLossOnly) {
  for (const double drop : {0.0, 0.2}) {
    ClusterOptions o = ranks(3);
    o.group.agreed.window = 64 * 1408;
    o.group.agreed.chunk = 1408;
    Cluster c(o);
    c.net().faults().drop = drop;
    const size_t chunks = 4000;
    finish(c, broadcast_all(c, 1, chunks * 1408, 1));
    const uint64_t cuts = c.total(Counter::congestion_cuts);
    if (drop == 0) {
      EXPECT_EQ(cuts, 0u);
    } else {
      // 64, 52, 42, ... down to the minimum, quantum + batch, and again after a window without
      // loss. There are more than a hundred windows.
      EXPECT_GE(cuts, 1u);
      EXPECT_LE(cuts, 20u);
    }
  }
}

// Groups that move large operations at the same time share the capacity of the socket's queue. If a
// share would be less than the minimum window, the first report of each operation is counted.
TEST(Counters, SharesBelowTheLeastWindowAreOvercommitted) {
  for (const uint32_t groups : {1u, 2u, 9u}) {
    ClusterOptions o = ranks(2);
    o.group.agreed.chunk = 1408;
    o.group.agreed.batch = 1408;
    o.group.agreed.window = 16 * 1408;  // quantum 4, batch 1: at least 5 chunks
    Cluster c(o);
    for (uint32_t g = 1; g < groups; g++) c.add_group(o.group);
    // All roots have begun before the receivers call, so the receivers see that many groups.
    Runs runs;
    for (uint32_t g = 0; g < groups; g++) runs.push_back(c.broadcast(1, 0, 400'000, g, kNever, g));
    c.run_for(kMilli);
    for (uint32_t g = 0; g < groups; g++)
      runs.push_back(c.broadcast(1, 0, 400'000, g + 50, kNever, g));
    for (uint32_t g = 0; g < groups; g++) {
      runs.push_back(c.broadcast(0, 0, 400'000, g, kNever, g));
      runs.push_back(c.broadcast(0, 0, 400'000, g + 50, kNever, g));
    }
    ASSERT_TRUE(c.run([&] { return all_done(runs); }));
    expect_good(runs, 2);
    uint64_t receivers = 0;
    for (uint32_t g = 0; g < groups; g++) {
      receivers += c.group(1, g).counters().get(Counter::budget_overcommits);
    }
    // 16 / 2 is enough, 16 / 9 is not. The first operations do not find another group busy yet.
    EXPECT_EQ(receivers, groups == 9 ? 9u : 0u);
  }
}

}  // namespace
}  // namespace mcast::test
