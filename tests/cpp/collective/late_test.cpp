// A late rank costs its lateness and no more. Data sent ahead of it is bounded in bytes and held
// back, not lost; lost data is fetched for many operations at a time; the rank is not taken for
// deaf; and a waiting operation costs memory once and no time.
#include <gtest/gtest.h>

#include "support/cluster.h"
#include "support/program.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr Nanos kLateness = 15 * kSecond;

// `count` broadcasts of `bytes` each by rank 0, posted at once by all ranks but the last.
struct Late {
  explicit Late(const ClusterOptions& o, size_t many, size_t size)
      : c(o), count(many), bytes(size), last(static_cast<Member>(o.ranks - 1)) {}

  void post_ahead() {
    for (Member r = 0; r < last; r++) {
      for (uint64_t id = 1; id <= count; id++) runs.push_back(c.broadcast(r, 0, bytes, id));
    }
  }
  // Makes the last rank call the operations, each when the one before it is done.
  void come() {
    came = c.now();
    frames = c.total(Counter::frames_sent);
    call(1);
  }
  void call(uint64_t id) {
    if (id > count) return;
    runs.push_back(nullptr);
    const size_t at = runs.size() - 1;
    runs[at] = c.call(last, {wire::Kind::kBroadcast, 6, 0, bytes, ""}, id, kNever, 0,
                      [this, id] { c.at(c.now() + kMicro, [this, id] { call(id + 1); }); });
  }
  bool over() const { return runs.size() == count * c.size() && all_done(runs); }
  void expect_still_multicast() {
    EXPECT_EQ(c.total(Counter::path_switches), 0u);
    for (Member r = 0; r < c.size(); r++) EXPECT_FALSE(c.group(r).core().failed());
  }

  Cluster c;
  const size_t count, bytes;
  const Member last;
  Nanos came = 0;
  uint64_t frames = 0;
  Runs runs;
};

ClusterOptions options(uint32_t n) {
  ClusterOptions o;
  o.ranks = n;
  o.net.receive_budget = 4 << 20;
  o.group.agreed.budget = o.net.receive_budget;
  return o;
}

TEST(LateRank, ThousandsOfSmallOperationsAheadAreKeptNotLost) {
  for (const uint32_t n : {2u, 3u, 6u}) {
    Late late(options(n), 3000, 4);
    late.post_ahead();
    const auto& c = late.c;
    late.c.run_for(kLateness);
    // All other ranks are done and silent.
    for (const auto& r : late.runs) ASSERT_TRUE(r->done());
    EXPECT_LT(c.total(Counter::positions_sent), 8u);
    EXPECT_LT(c.total(Counter::frames_sent), 40u * n * 15u) << "pings and little more";
    late.come();
    ASSERT_TRUE(late.c.run([&] { return late.over(); }, 20 * kSecond));
    expect_good(late.runs, n);
    EXPECT_LT(c.now() - late.came, kSecond) << "virtual time";
    EXPECT_EQ(c.total(Counter::staging_drops), 0u);
    EXPECT_EQ(c.total(Counter::fetches_sent), 0u);
    EXPECT_EQ(c.total(Counter::early_fetches_sent), 0u);
    late.expect_still_multicast();
  }
}

TEST(LateRank, DataBeyondItsStagingIsHeldBackNotDropped) {
  ClusterOptions o = options(3);
  o.group.staging = 20'000;
  Late late(o, 400, 1000);
  late.post_ahead();
  late.c.run_for(kLateness);
  EXPECT_GT(late.c.total(Counter::eager_stalls), 0u);
  const uint64_t early = late.c.total(Counter::chunks_staged);
  EXPECT_GT(early, 10u);
  EXPECT_LE(early * 1000, 20'000u);
  late.come();
  ASSERT_TRUE(late.c.run([&] { return late.over(); }, 20 * kSecond));
  expect_good(late.runs, 3);
  EXPECT_EQ(late.c.total(Counter::staging_drops), 0u);
  EXPECT_EQ(late.c.total(Counter::fetches_sent), 0u);
  late.expect_still_multicast();
}

TEST(LateRank, SeveralRootsTogetherSendNoMoreThanItKeeps) {
  ClusterOptions o = options(4);
  o.group.staging = 30'000;
  Cluster c(o);
  Runs runs;
  for (uint64_t id = 1; id <= 200; id++) {
    for (Member r = 0; r < 3; r++) runs.push_back(c.allgather(r, 700, id));
    if (id % 7 == 0) c.run_for(100 * kMicro);
  }
  c.run_for(kSecond);
  for (uint64_t id = 1; id <= 200; id++) runs.push_back(c.allgather(3, 700, id));
  finish(c, runs);
  EXPECT_EQ(c.total(Counter::staging_drops), 0u);
  EXPECT_EQ(c.total(Counter::fetches_sent), 0u);
}

// With a small budget, a root's share is less than a chunk. Its blocks are sent unasked
// nevertheless, so each is charged as a whole chunk.
TEST(LateRank, BlocksShorterThanAChunkCountWhole) {
  for (const size_t size : {100u, 1000u}) {  // the share is 1024 of 1408 bytes
    ClusterOptions o = options(8);
    o.net.receive_budget = 32 << 10;
    o.group.staging = 20'000;
    Cluster c(o);
    Runs runs;
    for (uint64_t id = 1; id <= 40; id++) {
      for (Member r = 0; r < 7; r++) runs.push_back(c.allgather(r, size, id));
    }
    c.run_for(kSecond);
    EXPECT_GT(c.total(Counter::eager_stalls), 0u);
    for (uint64_t id = 1; id <= 40; id++) runs.push_back(c.allgather(7, size, id));
    finish(c, runs);
    EXPECT_EQ(c.total(Counter::staging_drops), 0u);
    EXPECT_EQ(c.total(Counter::fetches_sent), 0u);
  }
}

// All data is lost, and is fetched in a few requests before the operations are posted.
TEST(LateRank, LostDataIsFetchedForManyOperationsAtATime) {
  // Blocks below a chunk, then blocks of whole chunks.
  for (const auto& [many, size] : {std::pair{2000, 100}, std::pair{1000, 2 * 1408}}) {
    Late late(options(3), static_cast<size_t>(many), static_cast<size_t>(size));
    late.c.net().block_multicast(0, 2);
    late.post_ahead();
    late.c.run_for(kSecond);
    late.c.net().block_multicast(0, 2, false);
    late.c.run_for(kLateness);
    EXPECT_EQ(late.c.total(Counter::early_chunks_received), 2000u);
    EXPECT_LT(late.c.total(Counter::early_fetches_sent), 40u);
    late.come();
    ASSERT_TRUE(late.c.run([&] { return late.over(); }, 20 * kSecond));
    expect_good(late.runs, 3);
    EXPECT_EQ(late.c.total(Counter::fetches_sent), 0u);
    EXPECT_LT(late.c.now() - late.came, kSecond) << "virtual time";
    late.expect_still_multicast();
  }
}

// A sender ignores the limit on data sent ahead.
TEST(LateRank, DataBeyondTheLimitIsDroppedAndCounted) {
  ClusterOptions o = options(3);
  o.group.staging = 20'000;
  Cluster c(o);
  wire::DatagramHeader h;
  h.group_tag = c.group(2).core().params().tag;
  for (h.sequence = 0; h.sequence < 40; h.sequence++) {
    std::vector<std::byte> slot(wire::kDatagramHeader + 1000);
    wire::write_datagram(slot, h, std::vector<std::byte>(1000));
    c.net().inject(2, slot);
  }
  c.run_for(kMilli);
  EXPECT_EQ(c.total(Counter::chunks_staged), 20'000u / (1000 + EagerWindow::kChunkOverhead));
  EXPECT_EQ(c.total(Counter::chunks_staged) + c.total(Counter::staging_drops), 40u);
}

TEST(LateRank, LossAndLatenessTogether) {
  for (const uint64_t seed : seeds(20)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    ClusterOptions o = options(3);
    o.net.seed = seed;
    if (seed % 2 == 0) o.group.staging = 10'000;
    Late late(o, 300, 1 + 500 * (seed % 4));
    late.c.net().faults().drop = 0.02 * static_cast<double>(seed % 10);
    late.c.net().faults().reorder = seed % 3 == 0 ? 0.05 : 0;
    late.post_ahead();
    late.c.run_for(kSecond);
    late.come();
    ASSERT_TRUE(late.c.run([&] { return late.over(); }, 60 * kSecond)) << "seed " << seed;
    expect_good(late.runs, 3);
    late.expect_still_multicast();
  }
}

// A stopped process misses data that it must have received, and returns.
TEST(LateRank, AStoppedProcessIsNotDeaf) {
  ClusterOptions o = options(3);
  o.net.receive_budget = o.group.agreed.budget = 60'000;
  Late late(o, 2000, 200);
  late.c.pause(2, true);
  late.post_ahead();
  late.c.run_for(5 * kSecond);
  late.c.pause(2, false);
  late.come();
  ASSERT_TRUE(late.c.run([&] { return late.over(); }, 60 * kSecond));
  expect_good(late.runs, 3);
  EXPECT_LT(late.c.now() - late.came, 2 * kSecond) << "virtual time";
  late.expect_still_multicast();
}

// Two of three ranks have made all their calls.
TEST(LateRank, OperationsThatWaitCostMemoryOnceAndNoTime) {
  Late late(options(3), 5000, 4);
  late.post_ahead();
  late.c.run_for(kSecond);
  for (Member r = 0; r < 2; r++) {
    EXPECT_LE(late.c.group(r).core().unsettled(), 1u) << "rank " << r;
    EXPECT_LT(late.c.group(r).core().visits(), 5u * 5000) << "rank " << r;
  }
  const uint64_t before = late.c.group(0).core().visits();
  late.c.run_for(kLateness);
  EXPECT_LT(late.c.group(0).core().visits() - before, 10u);
}

// A rank that called ahead of a late root has all these operations open; a poll must not visit
// them.
TEST(LateRank, OpenOperationsOfALateRootAreNotVisited) {
  Late late(options(2), 1, 4);
  Cluster& c = late.c;
  Runs runs;
  for (uint64_t id = 1; id <= 3000; id++) runs.push_back(c.broadcast(1, 0, 4, id));
  c.run_for(kSecond);
  const uint64_t before = c.group(1).core().visits();
  c.run_for(10 * kSecond);
  EXPECT_LT(c.group(1).core().visits() - before, 10u);
  for (uint64_t id = 1; id <= 3000; id++) runs.push_back(c.broadcast(0, 0, 4, id));
  finish(c, runs);
  EXPECT_LT(c.group(1).core().visits(), 10u * 3000);
}

// The memory for copies that others may need is bounded. A rank that cannot keep more waits, and
// continues later.
TEST(LateRank, CopiesAreChargedAtTheirFullCost) {
  ClusterOptions o = options(2);
  o.group.retransmit = 100'000;
  Late late(o, 2000, 4);
  late.post_ahead();
  late.c.run_for(kSecond);
  size_t done = 0;
  for (const auto& r : late.runs) done += r->done() ? 1 : 0;
  EXPECT_GT(done, 200u);
  EXPECT_LE(done * OperationQueue::kSettledCost, 100'000u);
  late.come();
  ASSERT_TRUE(late.c.run([&] { return late.over(); }, 20 * kSecond));
  expect_good(late.runs, 2);
}

}  // namespace
}  // namespace mcast::test
