// Exchanges among ranks of one host: cases that random programs do not aim at.
#include <gtest/gtest.h>

#include "shm/host_world.h"
#include "support/errors.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using wire::Kind;
using enum PeerMemory;

// An all_to_all of blocks of `bytes`. If `odd`, this rank's block for rank 0 has `other` bytes.
HostCall all_to_all(Member rank, uint32_t ranks, size_t bytes, size_t other = 0, bool odd = false) {
  HostCall call;
  call.descriptor = {Kind::kAllToAll, 6, kNoMember, 0, "all_to_all_single"};
  size_t all = 0;
  for (uint32_t m = 0; m < ranks; m++) {
    call.inputs.emplace_back(m == rank ? 0 : odd && m == 0 ? other : bytes);
    call.lengths.push_back(m == rank ? 0 : bytes);
    all += call.lengths.back();
  }
  call.output.resize(all);
  return call;
}

class HostExchanges : public testing::TestWithParam<PeerMemory> {};

TEST_P(HostExchanges, DeliverExactBytes) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const auto ranks = static_cast<uint32_t>(2 + seed % 5);
    constexpr uint32_t kCalls = 10;
    HostWorld world(ranks, GetParam(), seed);
    Rng rng(seed + 78);
    std::vector<uint32_t> posted(ranks, 0);
    for (uint64_t left = uint64_t{ranks} * kCalls; left > 0;) {
      const auto m = static_cast<Member>(rng.next() % ranks);
      if (posted[m] < kCalls) {
        world.post(m, make_exchange(seed, posted[m]++, m, ranks));
        left--;
      }
      for (uint64_t i = rng.next() % 6; i > 0; i--) world.step();
    }
    ASSERT_TRUE(world.run());
    for (uint32_t i = 0; i < kCalls; i++) {
      std::vector<HostCall> all;
      for (Member m = 0; m < ranks; m++) all.push_back(make_exchange(seed, i, m, ranks));
      for (Member m = 0; m < ranks; m++) {
        const HostCall& call = *world.calls(m)[i];
        ASSERT_EQ(call.ended, 1) << call.descriptor.to_string() << " on rank " << m;
        ASSERT_TRUE(call.status.ok()) << call.status.to_string();
        size_t at = 0;
        for (const HostCall& from : all) {
          const auto& block = from.inputs[m];
          ASSERT_TRUE(std::equal(block.begin(), block.end(), call.result.begin() + at));
          at += block.size();
        }
      }
    }
  }
}

TEST_P(HostExchanges, DifferentLengthsAreAnErrorThatNamesBoth) {
  for (const auto& [bytes, other] :
       {std::pair<size_t, size_t>{100, 99}, {0, 5}, {5, 0}, {400'000, 399'999}}) {
    HostWorld world(3, GetParam(), bytes + 1);
    for (const Member m : {0, 1, 2}) world.post(m, all_to_all(m, 3, bytes, other, m == 2));
    ASSERT_TRUE(world.run());
    EXPECT_TRUE(is_error(world.calls(0)[0]->status, ErrorId::lengths_differ,
                         {{"sequence", "0"},
                          {"operation", "all_to_all_single"},
                          {"rank", "2"},
                          {"sent", std::to_string(other)},
                          {"other", "0"},
                          {"expected", std::to_string(bytes)}}));
    EXPECT_FALSE(world.core(1).failure().ok());
    EXPECT_FALSE(world.core(2).failure().ok());
  }
}

TEST_P(HostExchanges, ADeadRankIsNamed) {
  HostWorld world(3, GetParam(), 5);
  for (const Member m : {0, 1}) world.post(m, all_to_all(m, 3, 300'000));
  ASSERT_TRUE(world.run());
  world.kill(2);
  world.watch();
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 1}) {
    const HostCall& call = *world.calls(m)[0];
    ASSERT_EQ(call.ended, 1);
    EXPECT_TRUE(is_error(call.status, ErrorId::rank_lost, {{"rank", "2"}}));
  }
}

INSTANTIATE_TEST_SUITE_P(Memories, HostExchanges, testing::Values(kSlots, kRead, kMapped));

// A rank that only receives from the root waits only for the root. The root, whose blocks are in
// its slot, waits for no rank.
TEST(HostExchange, AScatterNeedsItsRootAndAGatherNobodyButAtItsRoot) {
  const auto rooted = [](Kind kind, Member rank) {
    HostCall call;
    call.descriptor = {kind, 6, 0, 1000, ""};
    for (uint32_t m = 0; m < 3; m++) {
      const bool other = m != rank;
      const bool gather = kind == Kind::kGather;
      call.inputs.emplace_back(other && (gather ? m : rank) == 0 ? 1000 : 0);
      call.lengths.push_back(other && (gather ? rank : m) == 0 ? 1000 : 0);
    }
    call.output.resize(1000 * std::count(call.lengths.begin(), call.lengths.end(), 1000));
    return call;
  };
  HostWorld world(3, kRead, 1);
  for (const Member m : {0, 1}) world.post(m, rooted(Kind::kScatter, m));
  ASSERT_TRUE(world.run());
  EXPECT_EQ(world.calls(0)[0]->ended, 1);
  EXPECT_EQ(world.calls(1)[0]->ended, 1);
  world.post(1, rooted(Kind::kGather, 1));
  world.post(0, rooted(Kind::kGather, 0));
  ASSERT_TRUE(world.run());
  EXPECT_EQ(world.calls(1)[1]->ended, 1);
  EXPECT_EQ(world.calls(0)[1]->ended, 0);
  world.post(2, rooted(Kind::kScatter, 2));
  world.post(2, rooted(Kind::kGather, 2));
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 1, 2}) {
    for (const auto& call : world.calls(m)) EXPECT_TRUE(call->ended == 1 && call->status.ok());
  }
}

}  // namespace
}  // namespace mcast::test
