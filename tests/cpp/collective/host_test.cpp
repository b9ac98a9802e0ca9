// Collectives among ranks of one host: exact bytes in any schedule, no lost wake-up, one outcome
// for every call whatever happens to the others.
#include <gtest/gtest.h>

#include <cstring>

#include "collective/host_world.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using wire::Kind;

void expect_exact(HostWorld& world, uint64_t seed, uint32_t index) {
  const auto expected = expected_outputs(seed, index, world.size());
  for (uint32_t r = 0; r < world.size(); r++) {
    const auto m = static_cast<Member>(r);
    const HostCall& call = *world.calls(m)[index];
    ASSERT_EQ(call.ended, 1) << call.descriptor.to_string() << " on rank " << r;
    ASSERT_TRUE(call.status.ok()) << call.status.to_string();
    ASSERT_TRUE(call.output == expected[r]) << call.descriptor.to_string() << " on rank " << r;
  }
}

struct Way {
  uint32_t ranks;
  bool direct;
};

class HostSchedules : public testing::TestWithParam<Way> {};

TEST_P(HostSchedules, DeliverExactBytes) {
  const auto [ranks, direct] = GetParam();
  constexpr uint32_t kCalls = 12;
  for (const uint64_t seed : seeds(40)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    HostWorld world(ranks, direct, seed);
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
      expect_exact(world, seed, i);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, HostSchedules,
                         testing::Values(Way{2, true}, Way{2, false}, Way{3, true}, Way{4, true},
                                         Way{4, false}, Way{5, false}, Way{9, true}));

// Runs the program until a random moment, lets `event` happen, and looks at what the ranks get.
void disturb(uint64_t seed, uint32_t ranks, bool direct,
             const std::function<void(HostWorld&, Member)>& event, bool all_fail) {
  constexpr uint32_t kCalls = 8;
  HostWorld world(ranks, direct, seed);
  Rng rng(seed + 5);
  const auto culprit = static_cast<Member>(rng.next() % ranks);
  for (uint32_t i = 0; i < kCalls; i++) {
    for (uint32_t r = 0; r < ranks; r++) {
      const auto m = static_cast<Member>(r);
      world.post(m, make_call(seed, i, m, ranks));
    }
  }
  for (uint64_t i = rng.next() % 150; i > 0; i--) world.step();
  event(world, culprit);
  for (int round = 0; round < 4; round++) {
    ASSERT_TRUE(world.run());
    world.watch();
  }
  ASSERT_TRUE(world.run());
  std::vector<std::vector<std::vector<std::byte>>> expected;
  for (uint32_t i = 0; i < kCalls; i++) expected.push_back(expected_outputs(seed, i, ranks));
  for (uint32_t r = 0; r < ranks; r++) {
    const auto m = static_cast<Member>(r);
    if (m == culprit && !all_fail) continue;
    for (uint32_t i = 0; i < kCalls; i++) {
      const HostCall& call = *world.calls(m)[i];
      ASSERT_EQ(call.ended, 1) << call.descriptor.to_string() << " on rank " << r;
      if (call.status.ok()) {
        ASSERT_TRUE(call.output == expected[i][r])
            << call.descriptor.to_string() << " on rank " << r;
      } else {
        EXPECT_NE(call.status.message().find("rank " + std::to_string(culprit)), std::string::npos)
            << call.status.message();
      }
    }
  }
}

TEST(HostFailures, AKilledRank) {
  for (const uint64_t seed : seeds(150)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    disturb(
        seed, 2 + seed % 4, seed % 3 != 0, [](HostWorld& world, Member m) { world.kill(m); },
        false);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(HostFailures, AbortReachesAllRanks) {
  for (const uint64_t seed : seeds(150)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    disturb(
        seed, 2 + seed % 4, seed % 3 != 0,
        [](HostWorld& world, Member m) {
          world.core(m).fail(
              Status(Code::kAborted, "aborted by rank " + std::to_string(m) + ": why not"), m);
        },
        true);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(HostFailures, BytesReadFromARankThatGaveUpAreNotDelivered) {
  // Rank 0 fails and gives its memory back, which changes, when rank 1 is about to read it.
  constexpr size_t kBytes = 1 << 20;
  for (const Kind kind : {Kind::kReduce, Kind::kReduceScatter, Kind::kAllreduce}) {
    HostWorld world(2, true, 1);
    std::vector<HostCall*> calls;
    for (const Member m : {0, 1}) {
      HostCall call;
      const auto root = static_cast<Member>(kind == Kind::kReduce ? 1 : kNoMember);
      call.descriptor = {kind, 0, root, kBytes, "", 1};
      call.inputs.assign(kind == Kind::kReduceScatter ? 2 : 1,
                         std::vector<std::byte>(kBytes, std::byte{1}));
      call.output.resize(kBytes);
      call.marks = {0};
      calls.push_back(&world.post(m, std::move(call)));
    }
    bool gave_up = false;
    world.on_read = [&] {
      if (std::exchange(gave_up, true)) return;
      world.core(0).fail(Status(Code::kAborted, "aborted by rank 0"), 0);
      for (auto& input : calls[0]->inputs) std::memset(input.data(), 9, input.size());
    };
    world.core(0).progress(true);  // its input is offered
    while (!gave_up) world.core(1).progress(true);
    ASSERT_TRUE(world.run());
    for (const HostCall* call : calls) {
      EXPECT_EQ(call->ended, 1);
      EXPECT_EQ(call->status.code(), Code::kAborted);
    }
  }
}

TEST(HostFailures, MismatchIsRaisedOnAllRanksWithBothDescriptions) {
  for (const uint64_t seed : seeds(200)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const uint32_t ranks = 2 + seed % 3;
    HostWorld world(ranks, seed % 2 == 0, seed);
    const auto odd = static_cast<Member>(seed % ranks);
    for (uint32_t r = 0; r < ranks; r++) {
      const auto m = static_cast<Member>(r);
      // The odd one calls something else, then all wait for each other.
      HostCall call = make_call(m == odd ? seed + 1000 : seed, 0, m, ranks);
      HostCall same = make_call(seed, 0, m, ranks);
      if (m == odd && call.descriptor.same(same.descriptor)) call.descriptor.element ^= 1;
      world.post(m, std::move(call));
      HostCall barrier = make_call(seed, 0, m, ranks);
      barrier.descriptor = {Kind::kBarrier, 0xff, kNoMember, 0, "barrier"};
      barrier.inputs.clear();
      barrier.output.clear();
      world.post(m, std::move(barrier));
    }
    ASSERT_TRUE(world.run());
    for (uint32_t r = 0; r < ranks; r++) {
      const HostCall& last = *world.calls(static_cast<Member>(r))[1];
      ASSERT_EQ(last.ended, 1) << "rank " << r;
      EXPECT_EQ(last.status.code(), Code::kMismatch) << last.status.to_string();
      EXPECT_NE(last.status.message().find("rank " + std::to_string(odd) + " called"),
                std::string::npos)
          << last.status.message();
    }
  }
}

// Rank 2 publishes something else after rank 0 has compared what was there, and before it takes.
TEST(HostFailures, AMismatchThatArrivesWhileSlotsAreTakenIsNoResult) {
  HostWorld world(3, true, 1);
  const auto gather = [](uint8_t element, Member m) {
    HostCall call;
    call.descriptor = {Kind::kAllgather, element, kNoMember, 100, "all_gather"};
    call.inputs = {std::vector<std::byte>(100, static_cast<std::byte>(m))};
    call.output.assign(300, static_cast<std::byte>(m));
    call.marks = {0, 0, 0};
    return call;
  };
  world.post(1, gather(0, 1));
  world.core(1).progress(true);
  HostCall& first = world.post(0, gather(0, 0));
  world.on_now = [&] {  // rank 0 notes the time when it takes the first slot
    world.on_now = nullptr;
    world.post(2, gather(1, 2));
    world.core(2).progress(true);
  };
  world.core(0).progress(true);
  ASSERT_TRUE(world.run());
  EXPECT_EQ(first.ended, 1);
  EXPECT_EQ(first.status.code(), Code::kMismatch) << first.status.to_string();
}

HostCall barrier() {
  HostCall call;
  call.descriptor = {Kind::kBarrier, 0xff, kNoMember, 0, "barrier"};
  return call;
}

TEST(HostFailures, LateRanksAreNamedAtTheLimit) {
  HostWorld world(4, true, 1);
  for (const Member m : {0, 2}) world.post(m, barrier(), 3 * kSecond);
  ASSERT_TRUE(world.run());
  world.watch();
  EXPECT_EQ(world.calls(0)[0]->ended, 0);
  world.now += 4 * kSecond;
  world.watch();
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 2}) {
    EXPECT_EQ(world.calls(m)[0]->status.code(), Code::kTimeout);
    EXPECT_NE(world.calls(m)[0]->status.message().find("rank(s) 1, 3 have not called it"),
              std::string::npos)
        << world.calls(m)[0]->status.message();
  }
  // Who comes later learns it too.
  EXPECT_EQ((world.post(1, barrier()), world.run(), world.calls(1)[0]->status.code()),
            Code::kTimeout);
}

TEST(HostFailures, ARankThatLeavesIsNamedAndWhatItHadCalledIsDone) {
  HostWorld world(3, true, 1);
  for (const Member m : {0, 1, 2}) world.post(m, barrier());
  ASSERT_TRUE(world.run());
  world.core(1).leave();
  for (const Member m : {0, 2}) world.post(m, barrier());
  ASSERT_TRUE(world.run());
  world.watch();
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 2}) {
    EXPECT_TRUE(world.calls(m)[0]->status.ok());
    EXPECT_EQ(world.calls(m)[1]->status.code(), Code::kClosed);
    EXPECT_NE(world.calls(m)[1]->status.message().find(
                  "rank 1 left the group without calling operation 1"),
              std::string::npos)
        << world.calls(m)[1]->status.message();
  }
}

// A rank that waits for a late one must sleep: it would take the CPU that the late one needs.
TEST(HostRounds, WaitingForALateRankIsSleeping) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const uint32_t ranks = 2 + seed % 3;
    HostWorld world(ranks, seed % 4 != 0, seed);
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
  HostWorld world(2, true, 1);
  const auto small = [](bool root) {
    HostCall call;
    call.descriptor = {Kind::kBroadcast, 0xff, 0, 100, "broadcast"};
    if (root) call.inputs = {std::vector<std::byte>(100, std::byte{5})};
    call.output.assign(100, root ? std::byte{5} : std::byte{});
    call.marks = {0};
    return call;
  };
  for (int i = 0; i < 20; i++) world.post(0, small(true));
  ASSERT_TRUE(world.run());
  uint32_t over = 0;
  for (const auto& call : world.calls(0)) over += static_cast<uint32_t>(call->ended);
  EXPECT_EQ(over, kHostDepth);  // it needs nobody as long as there are slots
  for (int i = 0; i < 20; i++) world.post(1, small(false));
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 1}) {
    for (const auto& call : world.calls(m)) {
      EXPECT_EQ(call->ended, 1);
      EXPECT_EQ(call->output[99], std::byte{5});
    }
  }
}

// A caller that waits for the first of two is not kept for the bytes of the second.
TEST(HostRounds, AnEndIsReportedBeforeTheNextTransfer) {
  HostWorld world(2, true, 1);
  constexpr size_t kBytes = kHostDepth / 2 * kHostSlot;  // both are in the slots at once
  for (const Member m : {0, 1}) {
    for (int i = 0; i < 2; i++) {
      HostCall call;
      call.descriptor = {Kind::kBroadcast, 0xff, 0, kBytes, "broadcast"};
      call.output.assign(kBytes, m == 0 ? std::byte{7} : std::byte{});
      if (m == 0) call.inputs = {call.output};
      call.marks = {0};
      world.post(m, std::move(call));
    }
    if (m == 0) world.core(0).progress(true);
  }
  EXPECT_TRUE(world.core(1).progress(true));  // there is more to do
  EXPECT_EQ(world.calls(1)[0]->ended, 1);
  EXPECT_EQ(world.calls(1)[1]->ended, 0);
  EXPECT_EQ(world.calls(1)[0]->output[kBytes - 1], std::byte{7});
  EXPECT_EQ(world.calls(1)[1]->output[0], std::byte{});
  ASSERT_TRUE(world.run());
  EXPECT_EQ(world.calls(1)[1]->ended, 1);
  EXPECT_EQ(world.calls(1)[1]->output[kBytes - 1], std::byte{7});
}

TEST(HostRounds, AllReduceInPlaceOverSeveralSegments) {
  for (const size_t count : {size_t{7'000'001}, size_t{2'097'152}, size_t{17}}) {
    for (const bool direct : {true, false}) {
      if (!direct && count > 3'000'000) continue;
      HostWorld world(3, direct, count);
      for (const Member m : {0, 1, 2}) {
        HostCall call;
        call.descriptor = {Kind::kAllreduce, 0, kNoMember, count * 4, "", 1};
        call.output.resize(count * 4);
        auto* values = reinterpret_cast<int32_t*>(call.output.data());
        for (size_t i = 0; i < count; i++) values[i] = static_cast<int32_t>(i * 7 + m);
        call.marks = {0};
        world.post_in_place(m, std::move(call));
      }
      ASSERT_TRUE(world.run());
      for (const Member m : {0, 1, 2}) {
        const HostCall& call = *world.calls(m)[0];
        ASSERT_TRUE(call.ended == 1 && call.status.ok()) << call.status.to_string();
        const auto* values = reinterpret_cast<const int32_t*>(call.output.data());
        for (size_t i = 0; i < count; i++) {
          ASSERT_EQ(values[i], static_cast<int32_t>(3 * i * 7 + 3)) << i << " on rank " << m;
        }
      }
    }
  }
}

TEST(HostRounds, BytesMovedAreThoseOfTheModel) {
  // An all_gather copies every block into slots once; a reduce_scatter reads the own block of each
  // peer; an all_reduce does that, and its results go through slots.
  for (const Kind kind : {Kind::kAllgather, Kind::kReduceScatter, Kind::kAllreduce}) {
    HostWorld world(4, true, 3);
    constexpr size_t kBlock = 256 * 1024;
    for (const Member m : {0, 1, 2, 3}) {
      HostCall call;
      const bool all = kind == Kind::kAllreduce;
      call.descriptor = {kind, 0, kNoMember, all ? 4 * kBlock : kBlock, ""};
      const size_t inputs = kind == Kind::kReduceScatter ? 4 : 1;
      for (size_t i = 0; i < inputs; i++) call.inputs.emplace_back(call.descriptor.bytes);
      call.output.resize(kind == Kind::kReduceScatter ? kBlock : 4 * kBlock);
      call.marks.assign(4, 0);
      if (kind != Kind::kAllgather) call.descriptor.reduction = 1;
      world.post(m, std::move(call));
    }
    ASSERT_TRUE(world.run());
    for (const Member m : {0, 1, 2, 3}) EXPECT_TRUE(world.calls(m)[0]->status.ok());
    EXPECT_EQ(world.total(Counter::shm_direct_bytes),
              kind == Kind::kAllgather ? 0 : 4 * 3 * kBlock);
    EXPECT_EQ(world.total(Counter::shm_slot_bytes), kind == Kind::kReduceScatter ? 0 : 4 * kBlock);
    // A slot each; one round, in which addresses are told; the same, and a slot each.
    const uint64_t rounds = kind == Kind::kAllgather ? 2 : kind == Kind::kReduceScatter ? 1 : 1 + 2;
    EXPECT_EQ(world.total(Counter::shm_rounds), 4 * rounds);
  }
}

}  // namespace
}  // namespace mcast::test
