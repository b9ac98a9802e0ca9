// Reductions of whole groups: what random schedules do not aim at.
#include "support/program.h"

namespace mcast::test {
namespace {

using wire::Kind;

TEST(Reductions, ALaterOneDoesNotTakeTheRoomOfAnEarlierOne) {
  ClusterOptions o;
  o.ranks = 3;
  Cluster c(o);
  // Eight segments of 60 KiB per contributor: the large one asks for four at a time, and whatever
  // is free in between would be enough for small ones.
  Runs runs;
  const auto scatter = [&](Member r, size_t bytes, uint64_t id) {
    runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, bytes, id));
  };
  for (const Member r : {Member{0}, Member{1}}) {
    scatter(r, 3'000'000, 1);
    for (uint64_t id = 2; id < 8; id++) scatter(r, 70'000, id);
  }
  // The third calls the others only when the first is over.
  scatter(2, 3'000'000, 1);
  ASSERT_TRUE(c.run([&] { return runs.back()->done(); }, 10 * kSecond)) << "waits for each other";
  for (uint64_t id = 2; id < 8; id++) scatter(2, 70'000, id);
  finish(c, runs);
}

TEST(Reductions, AreSentAheadOnlyAsFarAsTheAllowance) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  Runs runs;
  // 40 small blocks of 8 KiB at once: 320 KiB, more than an owner keeps before its own calls.
  for (uint64_t id = 1; id <= 40; id++) {
    runs.push_back(c.reduction(0, Kind::kReduceScatter, 0, 8192, id));
  }
  c.run_for(100 * kMilli);
  EXPECT_EQ(c.total(Counter::reduce_bytes_sent), 65536u);
  EXPECT_FALSE(c.group(0).core().failed() || c.group(1).core().failed());
  for (uint64_t id = 1; id <= 40; id++) {
    runs.push_back(c.reduction(1, Kind::kReduceScatter, 0, 8192, id));
  }
  finish(c, runs);
}

TEST(Reductions, ContributionsCrossTheNetworkOnce) {
  for (const Kind kind : {Kind::kReduceScatter, Kind::kAllreduce, Kind::kReduce}) {
    ClusterOptions o;
    o.ranks = 4;
    Cluster c(o);
    Runs runs;
    const size_t bytes = kind == Kind::kReduceScatter ? 100'000 : 400'000;
    for (Member r = 0; r < 4; r++) runs.push_back(c.reduction(r, kind, 2, bytes, 3));
    finish(c, runs);
    // Three blocks of 100,000 from each; a reduce also brings three results to its root.
    const uint64_t blocks = kind == Kind::kReduce ? 15 : 12;
    EXPECT_EQ(c.total(Counter::reduce_bytes_sent), blocks * 100'000);
    EXPECT_EQ(c.total(Counter::reduce_bytes_received), blocks * 100'000);
    const uint64_t chunks = (100'000 + 1407) / 1408;
    EXPECT_EQ(c.total(Counter::chunks_placed), kind == Kind::kAllreduce ? 4 * 3 * chunks : 0);
  }
}

TEST(Reductions, OneStepForSmallOnesTwoForLarge) {
  for (const size_t bytes : {size_t{4096}, size_t{40'000}}) {
    ClusterOptions o;
    o.ranks = 4;
    Cluster c(o);
    Runs runs;
    for (Member r = 0; r < 4; r++) {
      runs.push_back(c.reduction(r, Kind::kAllreduce, 0, bytes, 1));
    }
    finish(c, runs);
    EXPECT_EQ(c.total(Counter::reduce_bytes_sent), bytes == 4096 ? 0 : 3 * bytes);
  }
}

TEST(Reductions, DifferentReductionsAreAMismatchOnAllRanks) {
  ClusterOptions o;
  o.ranks = 3;
  Cluster c(o);
  Runs runs;
  for (Member r = 0; r < 3; r++) {
    wire::Descriptor d{Kind::kReduceScatter, static_cast<uint8_t>(Element::kInt32), kNoMember,
                       100'000, ""};
    d.reduction = static_cast<uint8_t>(r == 1 ? Reduction::kMax : Reduction::kSum);
    runs.push_back(c.call(r, d, 1));
  }
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
  for (const auto& run : runs) {
    EXPECT_EQ(run->status.code(), Code::kMismatch);
    EXPECT_NE(run->status.message().find("max"), std::string::npos) << run->status.message();
    EXPECT_NE(run->status.message().find("sum"), std::string::npos) << run->status.message();
  }
}

}  // namespace
}  // namespace mcast::test
