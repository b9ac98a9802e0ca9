// Every call has one outcome whatever happens to the other ranks: they are killed, give up, leave,
// are late, or call something else.
#include <gtest/gtest.h>

#include <cstring>

#include "shm/host_world.h"
#include "support/errors.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using wire::Kind;

// Runs the program until a random moment, runs `event`, and checks the outcomes of the ranks: a
// call that fails ends with this error. Adds the number of failed calls.
void disturb(uint64_t seed, uint32_t ranks, PeerMemory memory,
             const std::function<void(HostWorld&, Member)>& event, ErrorId id, size_t& failed) {
  constexpr uint32_t kCalls = 8;
  HostWorld world(ranks, memory, seed);
  Rng rng(seed + 5);
  const auto culprit = static_cast<Member>(rng.next() % ranks);
  for (uint32_t i = 0; i < kCalls; i++) {
    for (uint32_t r = 0; r < ranks; r++) {
      const auto m = static_cast<Member>(r);
      world.post(m, make_call(seed, i, m, ranks));
    }
  }
  for (uint64_t i = rng.next() % 32; i > 0; i--) world.step();
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
    if (m == culprit && id == ErrorId::rank_lost) continue;
    for (uint32_t i = 0; i < kCalls; i++) {
      const HostCall& call = *world.calls(m)[i];
      ASSERT_EQ(call.ended, 1) << call.descriptor.to_string() << " on rank " << r;
      if (call.status.ok()) {
        ASSERT_TRUE(call.result == expected[i][r])
            << call.descriptor.to_string() << " on rank " << r;
      } else {
        failed++;
        EXPECT_TRUE(is_error(call.status, id, {{"rank", std::to_string(culprit)}}));
      }
    }
  }
}

TEST(HostFailures, CallsSucceedOrNameTheKilledRank) {
  size_t failed = 0;
  for (const uint64_t seed : seeds(150, 0, 16)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    disturb(
        seed, 2 + seed % 4, memory_by(seed), [](HostWorld& world, Member m) { world.kill(m); },
        ErrorId::rank_lost, failed);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(failed > 0 || replaying()) << "it always came too late";
}

TEST(HostFailures, AbortReachesAllRanks) {
  size_t failed = 0;
  for (const uint64_t seed : seeds(150, 0, 16)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    disturb(
        seed, 2 + seed % 4, memory_by(seed),
        [](HostWorld& world, Member m) {
          world.core(m).fail(make_error<ErrorId::aborted>(m, "why not"), m);
        },
        ErrorId::aborted, failed);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(failed > 0 || replaying()) << "it always came too late";
}

TEST(HostFailures, BytesReadFromARankThatGaveUpAreNotDelivered) {
  // Rank 0 fails and gives its memory back, whose contents change, just before rank 1 reads it.
  constexpr size_t kBytes = 1 << 20;
  for (const Kind kind : {Kind::kReduce, Kind::kReduceScatter, Kind::kAllreduce}) {
    HostWorld world(2, PeerMemory::kRead, 1);
    std::vector<HostCall*> calls;
    for (const Member m : {0, 1}) {
      HostCall call;
      const auto root = static_cast<Member>(kind == Kind::kReduce ? 1 : kNoMember);
      call.descriptor = {kind, 0, root, kBytes, "", 1};
      call.inputs.assign(kind == Kind::kReduceScatter ? 2 : 1,
                         std::vector<std::byte>(kBytes, std::byte{1}));
      call.output.resize(kBytes);
      call.completed = {0};
      calls.push_back(&world.post(m, std::move(call)));
    }
    bool gave_up = false;
    world.on_read = [&] {
      if (std::exchange(gave_up, true)) return;
      world.core(0).fail(make_error<ErrorId::aborted>(0, "why not"), 0);
      for (auto& input : calls[0]->inputs) std::memset(input.data(), 9, input.size());
    };
    world.turn(0);  // rank 0's input is offered
    while (!gave_up) world.turn(1);
    ASSERT_TRUE(world.run());
    for (const HostCall* call : calls) {
      EXPECT_EQ(call->ended, 1);
      EXPECT_TRUE(is_error(call->status, ErrorId::aborted, {{"rank", "0"}, {"reason", "why not"}}));
    }
  }
}

TEST(HostFailures, MismatchIsRaisedOnAllRanksWithBothDescriptions) {
  for (const uint64_t seed : seeds(200)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const uint32_t ranks = 2 + seed % 3;
    HostWorld world(ranks, memory_by(seed), seed);
    const auto odd = static_cast<Member>(seed % ranks);
    std::string usual_call, odd_call;
    for (uint32_t r = 0; r < ranks; r++) {
      const auto m = static_cast<Member>(r);
      // Rank `odd` calls something else, then all wait for each other.
      HostCall call = make_call(m == odd ? seed + 1000 : seed, 0, m, ranks);
      HostCall same = make_call(seed, 0, m, ranks);
      if (m == odd && call.descriptor.same(same.descriptor)) call.descriptor.element ^= 1;
      (m == odd ? odd_call : usual_call) = call.descriptor.to_string();
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
      EXPECT_TRUE(calls_differ(last.status, 0, usual_call, odd, odd_call));
    }
  }
}

// Rank 2 publishes another call after rank 0 has compared the published ones and before it reads
// the slots.
TEST(HostFailures, AMismatchThatArrivesWhileSlotsAreTakenIsNoResult) {
  HostWorld world(3, PeerMemory::kRead, 1);
  const auto gather = [](uint8_t element, Member m) {
    HostCall call;
    call.descriptor = {Kind::kAllgather, element, kNoMember, 100, "all_gather"};
    call.inputs = {std::vector<std::byte>(100, static_cast<std::byte>(m))};
    call.output.assign(300, static_cast<std::byte>(m));
    call.completed = {0, 0, 0};
    return call;
  };
  world.post(1, gather(0, 1));
  world.turn(1);
  HostCall& first = world.post(0, gather(0, 0));
  world.on_now = [&] {  // rank 0 reads the time when it takes the first slot
    world.on_now = nullptr;
    world.post(2, gather(1, 2));
    world.turn(2);
  };
  world.turn(0);
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
  HostWorld world(4, PeerMemory::kRead, 1);
  for (const Member m : {0, 2}) world.post(m, barrier(), 3 * kSecond);
  ASSERT_TRUE(world.run());
  world.watch();
  EXPECT_EQ(world.calls(0)[0]->ended, 0);
  world.now += 4 * kSecond;
  world.watch();
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 2}) {
    EXPECT_TRUE(is_error(world.calls(m)[0]->status, ErrorId::ranks_late, {{"ranks", "1, 3"}}));
  }
  // A rank that calls later gets the same error.
  EXPECT_EQ((world.post(1, barrier()), world.run(), world.calls(1)[0]->status.code()),
            Code::kTimeout);
}

TEST(HostFailures, LeavingRankIsNamedAfterItsCallsAreDone) {
  HostWorld world(3, PeerMemory::kRead, 1);
  for (const Member m : {0, 1, 2}) world.post(m, barrier());
  ASSERT_TRUE(world.run());
  world.core(1).leave();
  for (const Member m : {0, 2}) world.post(m, barrier());
  ASSERT_TRUE(world.run());
  world.watch();
  ASSERT_TRUE(world.run());
  for (const Member m : {0, 2}) {
    EXPECT_TRUE(world.calls(m)[0]->status.ok());
    EXPECT_TRUE(is_error(world.calls(m)[1]->status, ErrorId::rank_left_before,
                         {{"rank", "1"}, {"sequence", "1"}}));
  }
}

}  // namespace
}  // namespace mcast::test
