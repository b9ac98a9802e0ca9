// Roots that send at the same time keep the same pace. A root does not receive its own block, so
// every link is full only while all of them send. Virtual time.
#include <gtest/gtest.h>

#include "support/program.h"

namespace mcast::test {
namespace {

constexpr double kGigabit = 125e6;  // 1 Gbit/s
constexpr size_t kBlock = 12 << 20;

ClusterOptions links(uint32_t ranks) {
  ClusterOptions o;
  o.ranks = ranks;
  o.net.rate = kGigabit;
  o.net.receive_budget = o.group.agreed.budget = 8 << 20;
  o.net.stream_latency = kMilli;
  return o;
}

TEST(InStep, RootsThatSendAtOnceFillEveryLink) {
  for (const uint32_t ranks : {3u, 8u}) {
    Cluster c(links(ranks));
    Runs runs;
    for (Member r = 0; r < ranks; r++) runs.push_back(c.allgather(r, kBlock, 1));
    ASSERT_TRUE(c.run([&] { return all_done(runs); }));
    expect_good(runs, ranks);
    const double least = static_cast<double>(kBlock) * (ranks - 1) / kGigabit * kSecond;
    EXPECT_LE(static_cast<double>(runs[0]->done_at), 1.1 * least) << ranks << " ranks";
  }
}

// All-gather in which rank 3's block becomes readable piece by piece (staged from a device).
struct Staged {
  Cluster cluster{links(4)};
  std::shared_ptr<Region> region;
  size_t offset = 0;
  Runs runs;

  Staged() {
    cluster.adjust = [this](Member rank, Post& post) {
      if (rank != 3) return;
      region = post.input.region;
      offset = post.input.offset;
      region->set_readable(offset);
    };
    for (Member r = 0; r < 4; r++) runs.push_back(cluster.allgather(r, kBlock, 1));
  }
  void finish() {
    region->set_readable(region->size());
    ASSERT_TRUE(cluster.run([&] { return all_done(runs); }));
    region.reset();
    expect_good(runs, 4);
  }
};

constexpr uint64_t kChunks = (kBlock + 1407) / 1408;

TEST(InStep, FasterRootsDoNotRunAhead) {
  Staged s;
  // Rank 3 stages 33 MB/s. The links could carry 42 MB/s from each root, or 46 from the three
  // others.
  for (size_t ready = 0; ready <= kBlock / 2; ready += 32 << 10) {
    s.region->set_readable(s.offset + ready);
    s.cluster.run_for(kMilli);
  }
  const uint64_t lead = (2 << 20) / 4 / 1408 * 3 / 2;  // a window and a half
  const uint64_t placed = s.cluster.total(Counter::chunks_placed);
  EXPECT_LE(placed, 12 * (kChunks / 2 + lead));
  EXPECT_GE(placed, 12 * (kChunks / 2 - lead));
  s.finish();
}

TEST(InStep, TheOthersGoOnWithoutOneThatStandsStill) {
  Staged s;
  s.cluster.run_for(kSecond);
  // Three blocks, each received by three ranks.
  EXPECT_EQ(s.cluster.total(Counter::chunks_placed), 9 * kChunks);
  s.finish();
}

// Ranks 0 and 1 form one chain, 2 and 3 the other.
TEST(InStep, RootsOfAChainSendOneAfterTheOther) {
  ClusterOptions o;
  o.ranks = 4;
  o.group.agreed.chains = 2;
  Cluster c(o);
  constexpr size_t kSize = 2 << 20;
  constexpr Chunk kAll = (kSize + 1407) / 1408;
  std::vector<Chunk> sent(4);
  int early = 0;
  c.net().set_datagram_hook([&](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    if (from == to || !is_data(d, h)) return SimNetwork::Verdict::kPass;
    sent[from] = std::max(sent[from], h.chunk + 1);
    if (from % 2 == 1 && sent[from - 1] < kAll / 2) early++;
    return SimNetwork::Verdict::kPass;
  });
  Runs runs;
  for (Member r = 0; r < 4; r++) runs.push_back(c.allgather(r, kSize, 1));
  finish(c, runs);
  EXPECT_EQ(early, 0);
}

}  // namespace
}  // namespace mcast::test
