// Reductions of whole groups: cases that random schedules do not aim at.
#include <array>
#include <atomic>

#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using wire::Kind;

TEST(Reductions, LaterOneLeavesRoomForAnEarlierOne) {
  ClusterOptions o;
  o.ranks = 3;
  Cluster c(o);
  // Eight segments of 60 KiB per contributor: the large one requests four at a time, and the room
  // that is free in between would be enough for small ones.
  Runs runs;
  const auto scatter = [&](Member r, size_t bytes, uint64_t id) {
    runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, bytes, id));
  };
  for (const Member r : {Member{0}, Member{1}}) {
    scatter(r, 3'000'000, 1);
    for (uint64_t id = 2; id < 8; id++) scatter(r, 70'000, id);
  }
  // Rank 2 takes part in the other reductions only after the first is over.
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
  // Seven blocks with their overhead are within 64 KiB.
  EXPECT_EQ(c.total(Counter::reduce_bytes_sent), 57344u);
  EXPECT_FALSE(c.group(0).core().failed() || c.group(1).core().failed());
  for (uint64_t id = 1; id <= 40; id++) {
    runs.push_back(c.reduction(1, Kind::kReduceScatter, 0, 8192, id));
  }
  finish(c, runs);
}

// A reduction of one bfloat16 by every rank.
wire::Descriptor tiny(Kind kind, Member root) {
  wire::Descriptor d{kind, static_cast<uint8_t>(Element::kBFloat16), kNoMember, 2, ""};
  // With a factor, so that an all_reduce takes two steps.
  d.reduction =
      static_cast<uint8_t>(kind == Kind::kAllreduce ? Reduction::kPremulSum : Reduction::kSum);
  if (kind == Kind::kReduce) d.root = root;
  return d;
}

struct AheadOfOwners {
  uint64_t frames = 0, bytes = 0, offers = 0, grants = 0;  // of the reduce channel, to rank 0
  void count(ConstBytes frame) {
    wire::FrameHeader h;
    ASSERT_TRUE(wire::parse_frame(frame, h));
    frames++;
    bytes += frame.size() - wire::kFrameHeader;
    if (h.type == wire::FrameType::kReduceOffer) offers++;
    if (h.type == wire::FrameType::kReduceGrant) grants++;
  }
};

// All ranks but the first post `operations` at once. Returns the data that each of them sends to
// the first one before it posts. Then the first rank posts, and everything must succeed.
std::vector<AheadOfOwners> run_with_a_late_rank(const std::vector<uint32_t>& host_of,
                                                uint32_t ranks, const wire::Descriptor& d,
                                                uint64_t operations) {
  ClusterOptions o;
  o.ranks = ranks;
  o.group.host_of = host_of;
  Cluster c(o);
  std::vector<AheadOfOwners> ahead(ranks);
  c.net().set_frame_hook([&](size_t from, size_t to, Channel channel, ConstBytes frame) {
    if (to == 0 && channel == Channel::kReduce) ahead[from].count(frame);
    return true;
  });
  Runs runs;
  const auto post = [&](Member r) {
    for (uint64_t id = 1; id <= operations; id++) runs.push_back(c.call(r, d, id));
  };
  for (Member r = 1; r < ranks; r++) post(r);
  c.run_for(100 * kMilli);
  c.net().set_frame_hook(nullptr);
  for (Member r = 0; r < ranks; r++) {
    EXPECT_FALSE(c.group(r).core().failed()) << c.group(r).core().failure().message();
  }
  if (!testing::Test::HasFailure()) {
    post(0);
    finish(c, runs, 600 * kSecond);
  }
  return ahead;
}

// One rank has made many small calls, another none. However small they are, the frames to the late
// rank stay within the memory that it keeps for them, and the calls succeed when it has made them.
void small_ones_wait_for_a_late_rank(Kind kind, const std::vector<uint32_t>& host_of,
                                     uint32_t ranks, uint64_t operations = 1'000) {
  for (Member root = 0; root < ranks; root = static_cast<Member>(root + 2)) {
    if (root != 0 && kind != Kind::kReduce) continue;
    const auto ahead = run_with_a_late_rank(host_of, ranks, tiny(kind, root), operations);
    uint64_t frames = 0;
    for (const AheadOfOwners& a : ahead) {
      frames += a.frames;
      EXPECT_LE(a.frames, 600u);
      EXPECT_LE(a.offers, 64u);
      EXPECT_LE(a.bytes + a.frames * 128, 256u << 10);
    }
    EXPECT_GE(frames, 64u) << "nothing was sent ahead";
  }
}

TEST(Reductions, SmallReducesWaitForALateRank) {
  small_ones_wait_for_a_late_rank(Kind::kReduce, {}, 3);
}

// There are so many that, counted without the overhead of a frame, they would exceed the limit:
// stored, they would take twice its memory. (The time grows with the square of their number.)
TEST(Reductions, VeryManySmallReducesWaitForALateRank) {
  small_ones_wait_for_a_late_rank(Kind::kReduce, {}, 2, 5'000);
}

TEST(Reductions, SmallReduceScattersWaitForALateRank) {
  small_ones_wait_for_a_late_rank(Kind::kReduceScatter, {}, 3);
}

TEST(Reductions, SmallAllReducesWaitForALateRank) {
  small_ones_wait_for_a_late_rank(Kind::kAllreduce, {}, 3);
}

TEST(Reductions, SmallReducesWaitForALateRankOfAHost) {
  small_ones_wait_for_a_late_rank(Kind::kReduce, {0, 0, 1, 1}, 4);
}

TEST(Reductions, SmallReduceScattersWaitForALateRankOfAHost) {
  small_ones_wait_for_a_late_rank(Kind::kReduceScatter, {0, 0, 1, 1}, 4);
}

TEST(Reductions, SmallAllReducesWaitForALateRankOfAHost) {
  small_ones_wait_for_a_late_rank(Kind::kAllreduce, {0, 0, 1, 1}, 4);
}

TEST(Reductions, GrantsAheadOfALateRankAreBounded) {
  wire::Descriptor d{Kind::kReduceScatter, static_cast<uint8_t>(Element::kInt32), kNoMember, 20'000,
                     ""};
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  for (const uint32_t ranks : {2u, 3u}) {
    // 300 blocks of one segment each: at most 16 segments may be outstanding.
    for (const AheadOfOwners& a : run_with_a_late_rank({}, ranks, d, 300)) {
      EXPECT_LE(a.grants, 16u);
      EXPECT_EQ(a.frames, a.grants) << "it has asked for nothing";
    }
  }
}

// If many ranks contribute, only two segments of each fit. One frame grants both, and no more is
// ever in flight.
TEST(Reductions, GrantsAreFewAndWithinTheBound) {
  constexpr uint32_t kRanks = 24, kSegments = 8;
  ClusterOptions o;
  o.ranks = kRanks;
  o.group.agreed.incast = 256u << 10;
  Cluster c(o);
  const size_t segment = 5696 / 64 * 64;
  uint64_t grants = 0, data = 0;
  std::vector<std::vector<uint32_t>> told(kRanks, std::vector<uint32_t>(kRanks));
  std::vector<uint64_t> waited(kRanks);  // by owner: granted and not sent
  uint64_t most = 0;
  c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    wire::parse_frame(frame, h);
    if (h.type == wire::FrameType::kReduceGrant) {
      grants++;
      const auto end = wire::load<uint32_t>(frame.data() + wire::kFrameHeader);
      waited[from] += end - std::exchange(told[from][to], end);
      most = std::max(most, waited[from]);
    } else if (h.type == wire::FrameType::kReduceData) {
      data++;
      waited[to]--;
    }
    return true;
  });
  Runs runs;
  for (Member r = 0; r < kRanks; r++) {
    runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, segment * kSegments, 1));
  }
  finish(c, runs);
  constexpr uint64_t kPairs = kRanks * (kRanks - 1);
  EXPECT_EQ(data, kPairs * kSegments);
  EXPECT_LE(grants, kPairs * kSegments / 2);
  EXPECT_LE(most, 2u * (kRanks - 1));
}

TEST(Reductions, LateReadableSourceFindsRoomBeforeLaterOnes) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  Runs runs;
  std::shared_ptr<Region> staged;
  c.adjust = [&](Member rank, Post& post) {
    if (rank != 0 || post.sequence != 0) return;
    staged = post.reduce->inputs[0].region;
    staged->set_readable(0);
  };
  const auto post = [&](Member r) {
    for (uint64_t id = 1; id <= 20; id++) {
      runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 8192, id));
    }
  };
  // The operations behind it fill the account, and free nothing before it is over.
  post(0);
  c.run_for(20 * kMilli);
  EXPECT_GT(c.total(Counter::reduce_bytes_sent), 49'152u);
  staged->set_readable(UINT64_MAX);
  post(1);
  finish(c, runs);
}

TEST(Reductions, AResultBeforeOurContributionIsAViolation) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  const auto run = c.reduction(1, Kind::kReduce, 0, 1000, 1);
  const wire::FrameHeader header{wire::FrameType::kReduceResult, 0, 1,
                                 c.group(0).core().params().tag, 0, 0};
  std::vector<std::byte> frame(wire::kFrameHeader + 12);
  const std::array<ConstBytes, 1> body{ConstBytes(frame).subspan(wire::kFrameHeader)};
  wire::write_frame_header(frame.data(), header, body);
  c.net().inject_frame(1, 0, Channel::kReduce, frame);
  ASSERT_TRUE(c.run([&] { return run->done(); }, kSecond));
  EXPECT_NE(run->status.message().find("broke the protocol"), std::string::npos)
      << run->status.to_string();
}

TEST(Reductions, MoreAheadThanIsAllowedIsAViolation) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  std::vector<std::byte> frame(wire::kFrameHeader + (16u << 10));
  const std::array<ConstBytes, 1> body{ConstBytes(frame).subspan(wire::kFrameHeader)};
  for (Sequence s = 0; s < EarlyFrames::kMostReductions / (16u << 10); s++) {
    EXPECT_FALSE(c.group(0).core().failed());
    const wire::FrameHeader header{wire::FrameType::kReduceData,   0, 1,
                                   c.group(0).core().params().tag, s, 0};
    wire::write_frame_header(frame.data(), header, body);
    c.net().inject_frame(1, 0, Channel::kReduce, frame);
    c.run_for(kMilli);
  }
  ASSERT_TRUE(c.group(0).core().failed());
  EXPECT_NE(c.group(0).core().failure().message().find("sent ahead"), std::string::npos);
}

// An all-gather that never ends on the other lane slows reductions, but does not stop them.
TEST(Reductions, GoOnWhileMulticastArrives) {
  ClusterOptions o;
  o.ranks = 3;
  const auto arrived = std::make_shared<std::atomic<uint64_t>>(0);
  o.group.multicast.arrived = arrived;
  for (const LanePolicy policy : {LanePolicy::kFair, LanePolicy::kGather}) {
    o.group.policy = policy;
    Cluster c(o);
    Runs runs;
    for (Member r = 0; r < 3; r++) {
      runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 300'000, 1));
    }
    for (int i = 0; i < 1000 && !all_done(runs); i++) {
      *arrived += 1408;
      c.run_for(kMilli);
    }
    ASSERT_TRUE(all_done(runs));
    finish(c, runs);
    // Each of the three owners is held back at least once, and is notified no more often than it
    // grants.
    const uint64_t waits = c.total(Counter::grant_waits);
    const bool gather = policy == LanePolicy::kGather;
    EXPECT_TRUE(gather ? waits >= 3 && waits <= 3 * 5 * 2 : waits == 0) << waits;
  }
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
    // Each rank sends three blocks of 100,000; a reduce also sends three results to its root.
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
  wire::Descriptor sum{Kind::kReduceScatter, static_cast<uint8_t>(Element::kInt32), kNoMember,
                       100'000, ""};
  wire::Descriptor max = sum;
  sum.reduction = static_cast<uint8_t>(Reduction::kSum);
  max.reduction = static_cast<uint8_t>(Reduction::kMax);
  for (Member r = 0; r < 3; r++) runs.push_back(c.call(r, r == 1 ? max : sum, 1));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
  for (const auto& run : runs) {
    EXPECT_TRUE(calls_differ(run->status, 0, sum.to_string(), 1, max.to_string()));
  }
}

}  // namespace
}  // namespace mcast::test
