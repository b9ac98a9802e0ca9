// Collectives among ranks of one host: exact bytes in any schedule, and no lost wake-up.
#include <gtest/gtest.h>

#include "shm/host_world.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using wire::Kind;

void expect_exact(HostWorld& world, uint64_t seed, uint32_t index,
                  FoldOrder fold = FoldOrder::kRank) {
  const auto expected = expected_outputs(seed, index, world.size(), fold);
  for (uint32_t r = 0; r < world.size(); r++) {
    const auto m = static_cast<Member>(r);
    const HostCall& call = *world.calls(m)[index];
    ASSERT_EQ(call.ended, 1) << call.descriptor.to_string() << " on rank " << r;
    ASSERT_TRUE(call.status.ok()) << call.status.to_string();
    ASSERT_TRUE(call.result == expected[r]) << call.descriptor.to_string() << " on rank " << r;
  }
}

using enum PeerMemory;

struct Way {
  uint32_t ranks;
  PeerMemory memory;
};

class HostSchedules : public testing::TestWithParam<Way> {};

TEST_P(HostSchedules, DeliverExactBytes) {
  const auto [ranks, memory] = GetParam();
  constexpr uint32_t kCalls = 12;
  for (const uint64_t seed : seeds(40)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const FoldOrder fold = seed % 2 == 0 ? FoldOrder::kRank : FoldOrder::kTurn;
    HostWorld world(ranks, memory, seed, fold);
    Rng rng(seed + 77);
    std::vector<uint32_t> posted(ranks, 0);
    for (uint64_t left = uint64_t{ranks} * kCalls; left > 0;) {
      const auto m = static_cast<Member>(rng.next() % ranks);
      if (posted[m] < kCalls) {
        world.post(m, make_call(seed, posted[m]++, m, ranks));
        left--;
      }
      for (uint64_t i = rng.next() % 6; i > 0; i--) world.step();
    }
    ASSERT_TRUE(world.run());
    for (uint32_t i = 0; i < kCalls; i++) {
      expect_exact(world, seed, i, fold);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, HostSchedules,
                         testing::Values(Way{2, kRead}, Way{2, kSlots}, Way{2, kMapped},
                                         Way{3, kRead}, Way{3, kMapped}, Way{4, kRead},
                                         Way{4, kSlots}, Way{5, kSlots}, Way{5, kMapped},
                                         Way{9, kRead}));

// A rank that waits for a late one must sleep; otherwise it would use the CPU that the late one
// needs.
TEST(HostRounds, WaitingForALateRankIsSleeping) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const uint32_t ranks = 2 + seed % 3;
    HostWorld world(ranks, memory_by(seed), seed);
    const auto late = static_cast<Member>(seed % ranks);
    for (uint32_t r = 0; r < ranks; r++) {
      const auto m = static_cast<Member>(r);
      for (uint32_t i = 0; m != late && i < 4; i++) world.post(m, make_call(seed, i, m, ranks));
    }
    ASSERT_TRUE(world.run(20'000));
    for (uint32_t i = 0; i < 4; i++) world.post(late, make_call(seed, i, late, ranks));
    ASSERT_TRUE(world.run());
    for (uint32_t i = 0; i < 4; i++) {
      expect_exact(world, seed, i);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HostRounds, ARootRunsAheadOnlyAsFarAsTheSlots) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto small = [](bool root) {
    HostCall call;
    call.descriptor = {Kind::kBroadcast, 0xff, 0, 100, "broadcast"};
    if (root) call.inputs = {std::vector<std::byte>(100, std::byte{5})};
    call.output.assign(100, root ? std::byte{5} : std::byte{});
    call.completed = {0};
    return call;
  };
  for (int i = 0; i < 20; i++) world.post(0, small(true));
  ASSERT_TRUE(world.run());
  uint32_t over = 0;
  for (const auto& call : world.calls(0)) over += static_cast<uint32_t>(call->ended);
  EXPECT_EQ(over, kHostDepth);  // it waits for no rank as long as there are slots
  for (int i = 0; i < 20; i++) world.post(1, small(false));
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 1}) {
    for (const auto& call : world.calls(m)) {
      EXPECT_EQ(call->ended, 1);
      EXPECT_EQ(call->result[99], std::byte{5});
    }
  }
}

// A caller that waits for the first of two operations does not wait for the bytes of the second.
TEST(HostRounds, AnEndIsReportedBeforeTheNextTransfer) {
  HostWorld world(2, PeerMemory::kRead, 1);
  constexpr size_t kBytes = kHostDepth / 2 * kHostSlot;  // both fit into the slots at once
  for (const Member m : {0, 1}) {
    for (int i = 0; i < 2; i++) {
      HostCall call;
      call.descriptor = {Kind::kBroadcast, 0xff, 0, kBytes, "broadcast"};
      call.output.assign(kBytes, m == 0 ? std::byte{7} : std::byte{});
      if (m == 0) call.inputs = {call.output};
      call.completed = {0};
      world.post(m, std::move(call));
    }
    if (m == 0) world.turn(0);
  }
  EXPECT_TRUE(world.turn(1));  // there is more to do
  EXPECT_EQ(world.calls(1)[0]->ended, 1);
  EXPECT_EQ(world.calls(1)[1]->ended, 0);
  EXPECT_EQ(world.calls(1)[0]->result[kBytes - 1], std::byte{7});
  EXPECT_EQ(world.calls(1)[1]->output[0], std::byte{});
  ASSERT_TRUE(world.run());
  EXPECT_EQ(world.calls(1)[1]->ended, 1);
  EXPECT_EQ(world.calls(1)[1]->result[kBytes - 1], std::byte{7});
}

}  // namespace
}  // namespace mcast::test
