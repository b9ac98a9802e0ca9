// What each algorithm moves, against what its first lines and docs/hosts.md say.
#include <gtest/gtest.h>

#include "host/host_world.h"

namespace mcast::test {
namespace {

using wire::Kind;
using enum PeerMemory;

TEST(HostRounds, AllReduceInPlaceOverSeveralSpans) {
  for (const size_t count : {size_t{7'000'001}, size_t{2'097'152}, size_t{17}}) {
    for (const PeerMemory memory : {kSlots, kRead, kMapped}) {
      if (memory == kSlots && count > 3'000'000) continue;
      HostWorld world(3, memory, count);
      for (const Member m : {0, 1, 2}) {
        HostCall call;
        call.descriptor = {Kind::kAllreduce, 0, kNoMember, count * 4, "", 1};
        call.output.resize(count * 4);
        auto* values = reinterpret_cast<int32_t*>(call.output.data());
        for (size_t i = 0; i < count; i++) values[i] = static_cast<int32_t>(i * 7 + m);
        call.completed = {0};
        world.post_in_place(m, std::move(call));
      }
      ASSERT_TRUE(world.run());
      for (const Member m : {0, 1, 2}) {
        const HostCall& call = *world.calls(m)[0];
        ASSERT_TRUE(call.ended == 1 && call.status.ok()) << call.status.to_string();
        const auto* values = reinterpret_cast<const int32_t*>(call.result.data());
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
    HostWorld world(4, PeerMemory::kRead, 3);
    constexpr size_t kBlock = 256 * 1024;
    for (const Member m : {0, 1, 2, 3}) {
      HostCall call;
      const bool all = kind == Kind::kAllreduce;
      call.descriptor = {kind, 0, kNoMember, all ? 4 * kBlock : kBlock, ""};
      const size_t inputs = kind == Kind::kReduceScatter ? 4 : 1;
      for (size_t i = 0; i < inputs; i++) call.inputs.emplace_back(call.descriptor.bytes);
      call.output.resize(kind == Kind::kReduceScatter ? kBlock : 4 * kBlock);
      call.completed.assign(4, 0);
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

struct Cost {
  Kind kind;
  PeerMemory memory;
  size_t bytes;
  HostAlgorithm algorithm;
  // Of all ranks: through slots, read or mapped, rounds.
  uint64_t slots, read, rounds;
};

TEST(HostAlgorithms, CostWhatTheySay) {
  constexpr uint32_t kRanks = 4;
  constexpr size_t kSmall = 16 << 10, kLarge = 512 << 10, kPart = kHostSlot / kRanks;
  using enum HostAlgorithm;
  const Cost costs[] = {
      {Kind::kBarrier, kRead, 0, kBarrier, 0, 0, 1},
      {Kind::kBroadcast, kRead, kLarge, kBlocks, kLarge, 0, 4},
      {Kind::kAllgather, kRead, kLarge, kBlocks, 4 * kLarge, 0, 4},
      {Kind::kReduce, kRead, kSmall, kSlotReduce, 4 * kSmall, 0, 1},
      {Kind::kReduce, kRead, kLarge, kDirectReduce, 0, 3 * kLarge, 1},
      {Kind::kReduce, kSlots, kLarge, kSlotReduce, 4 * kLarge, 0, 4},
      {Kind::kReduceScatter, kRead, kSmall, kSlotReduce, 16 * kSmall, 0, 1},
      {Kind::kReduceScatter, kRead, kLarge, kDirectReduce, 0, 4 * 3 * kLarge, 1},
      {Kind::kReduceScatter, kSlots, kLarge, kSlotReduce, 16 * kLarge, 0, kLarge / kPart},
      {Kind::kAllreduce, kRead, kSmall, kSlotReduce, 4 * kSmall, 0, 1},
      {Kind::kAllreduce, kRead, kLarge, kDirectAllReduce, kLarge, 3 * kLarge, 2},
      {Kind::kAllreduce, kSlots, kLarge, kSlotAllReduce, 5 * kLarge, 0, 8},
      {Kind::kBroadcast, kMapped, kSmall, kBlocks, kSmall, 0, 1},
      {Kind::kBroadcast, kMapped, kLarge, kPulledBlocks, 0, 3 * kLarge, 2},
      {Kind::kAllgather, kMapped, kLarge, kPulledBlocks, 0, 4 * 3 * kLarge, 2},
      {Kind::kReduce, kMapped, kLarge, kDirectReduce, 0, 3 * kLarge, 1},
      {Kind::kReduceScatter, kMapped, kLarge, kDirectReduce, 0, 4 * 3 * kLarge, 1},
      {Kind::kAllreduce, kMapped, kLarge, kPulledAllReduce, 0, 6 * kLarge, 2},
  };
  for (const Cost& cost : costs) {
    HostWorld world(kRanks, cost.memory, 3);
    for (uint32_t r = 0; r < kRanks; r++) {
      HostCall call;
      wire::Descriptor& d = call.descriptor;
      d = {cost.kind, 0, kNoMember, cost.bytes, ""};
      if (cost.kind == Kind::kBroadcast || cost.kind == Kind::kReduce) d.root = 1;
      if (wire::is_reduction(d.kind)) d.reduction = 1;
      EXPECT_EQ(make_host_plan(d, kRanks, cost.memory).algorithm, cost.algorithm);
      const bool root = r == d.root;
      const size_t inputs = cost.kind == Kind::kReduceScatter ? kRanks : 1;
      if (cost.kind != Kind::kBroadcast || root) call.inputs.resize(inputs);
      for (auto& input : call.inputs) input.resize(cost.bytes);
      if (cost.kind != Kind::kReduce || root) {
        call.output.resize(cost.bytes * (cost.kind == Kind::kAllgather ? kRanks : 1));
      }
      call.completed.assign(kRanks, 0);
      world.post(static_cast<Member>(r), std::move(call));
    }
    ASSERT_TRUE(world.run());
    for (uint32_t r = 0; r < kRanks; r++) {
      EXPECT_TRUE(world.calls(static_cast<Member>(r))[0]->status.ok());
    }
    const std::string what = wire::kind_name(cost.kind) + (" of " + std::to_string(cost.bytes)) +
                             (", memory " + std::to_string(static_cast<int>(cost.memory)));
    EXPECT_EQ(world.total(Counter::shm_slot_bytes), cost.slots) << what;
    // Of what is mapped some lies elsewhere, and is read.
    const uint64_t mapped = world.total(Counter::shm_mapped_bytes);
    EXPECT_EQ(world.total(Counter::shm_direct_bytes) + mapped, cost.read) << what;
    EXPECT_TRUE(mapped == 0 || cost.memory == kMapped) << what;
    EXPECT_EQ(world.total(Counter::shm_rounds), kRanks * cost.rounds) << what;
  }
}

}  // namespace
}  // namespace mcast::test
