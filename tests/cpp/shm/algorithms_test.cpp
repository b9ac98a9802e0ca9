// Bytes that each algorithm moves, compared with its header comment and docs/hosts.md.
#include <gtest/gtest.h>

#include "shm/host_world.h"

namespace mcast::test {
namespace {

using wire::Kind;
using enum PeerMemory;

TEST(HostRounds, InPlaceAllReduceOverSeveralSpansIsExact) {
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
  // An all_gather copies every block into slots once. A reduce_scatter reads its own block from
  // each peer. An all_reduce does the same, and its results go through slots.
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
    // A slot each; one round, in which addresses are exchanged; that round and a slot each.
    const uint64_t rounds = kind == Kind::kAllgather ? 2 : kind == Kind::kReduceScatter ? 1 : 1 + 2;
    EXPECT_EQ(world.total(Counter::shm_rounds), 4 * rounds);
  }
}

// Blocks have d.bytes.
HostCall exchange_of(wire::Descriptor d, uint32_t rank, uint32_t ranks) {
  HostCall call;
  size_t all = 0;
  for (uint32_t m = 0; m < ranks; m++) {
    const bool other = m != rank, every = d.kind == Kind::kAllToAll;
    const bool in = other && (every || (d.kind == Kind::kGather ? rank : m) == d.root);
    const bool out = other && (every || (d.kind == Kind::kGather ? m : rank) == d.root);
    call.inputs.emplace_back(out ? d.bytes : 0);
    call.lengths.push_back(in ? d.bytes : 0);
    all += call.lengths.back();
  }
  call.output.resize(all);
  if (d.kind == Kind::kAllToAll) d.bytes = 0;
  call.descriptor = d;
  return call;
}

struct Cost {
  Kind kind;
  PeerMemory memory;
  size_t bytes;
  HostAlgorithm algorithm;
  // Totals of all ranks: bytes through slots, bytes read or mapped, rounds.
  uint64_t slots, read, rounds;
};

constexpr uint32_t kCostRanks = 4;
constexpr size_t kCostSmall = 16 << 10, kCostLarge = 512 << 10, kCostPart = kHostSlot / kCostRanks;
using enum HostAlgorithm;
constexpr Cost kCosts[] = {
    {Kind::kBarrier, kRead, 0, kBarrier, 0, 0, 1},
    {Kind::kBroadcast, kRead, kCostLarge, kBlocks, kCostLarge, 0, 4},
    {Kind::kAllgather, kRead, kCostLarge, kBlocks, 4 * kCostLarge, 0, 4},
    {Kind::kReduce, kRead, kCostSmall, kSlotReduce, 4 * kCostSmall, 0, 1},
    {Kind::kReduce, kRead, kCostLarge, kDirectReduce, 0, 3 * kCostLarge, 1},
    {Kind::kReduce, kSlots, kCostLarge, kSlotReduce, 4 * kCostLarge, 0, 4},
    {Kind::kReduceScatter, kRead, kCostSmall, kSlotReduce, 16 * kCostSmall, 0, 1},
    {Kind::kReduceScatter, kRead, kCostLarge, kDirectReduce, 0, 4 * 3 * kCostLarge, 1},
    {Kind::kReduceScatter, kSlots, kCostLarge, kSlotReduce, 16 * kCostLarge, 0,
     kCostLarge / kCostPart},
    {Kind::kAllreduce, kRead, kCostSmall, kSlotReduce, 4 * kCostSmall, 0, 1},
    {Kind::kAllreduce, kRead, kCostLarge, kDirectAllReduce, kCostLarge, 3 * kCostLarge, 2},
    {Kind::kAllreduce, kSlots, kCostLarge, kSlotAllReduce, 5 * kCostLarge, 0, 8},
    {Kind::kBroadcast, kMapped, kCostSmall, kBlocks, kCostSmall, 0, 1},
    {Kind::kBroadcast, kMapped, kCostLarge, kPulledBlocks, 0, 3 * kCostLarge, 2},
    {Kind::kAllgather, kMapped, kCostLarge, kPulledBlocks, 0, 4 * 3 * kCostLarge, 2},
    {Kind::kReduce, kMapped, kCostLarge, kDirectReduce, 0, 3 * kCostLarge, 1},
    {Kind::kReduceScatter, kMapped, kCostLarge, kDirectReduce, 0, 4 * 3 * kCostLarge, 1},
    {Kind::kAllreduce, kMapped, kCostLarge, kPulledAllReduce, 0, 6 * kCostLarge, 2},
    {Kind::kAllToAll, kRead, kCostSmall, kExchange, 12 * kCostSmall, 0, 1},
    {Kind::kAllToAll, kRead, kCostLarge, kExchange, 0, 12 * kCostLarge, 1},
    {Kind::kAllToAll, kMapped, kCostLarge, kExchange, 0, 12 * kCostLarge, 1},
    {Kind::kAllToAll, kSlots, kCostLarge, kSlotExchange, 12 * kCostLarge, 0,
     1 + kCostLarge / kCostPart},
    {Kind::kAllToAll, kSlots, 0, kSlotExchange, 0, 0, 1},
    {Kind::kGather, kRead, kCostLarge, kExchange, 0, 3 * kCostLarge, 1},
    {Kind::kGather, kSlots, kCostSmall, kSlotExchange, 3 * kCostSmall, 0, 2},
    {Kind::kScatter, kRead, kCostSmall, kExchange, 3 * kCostSmall, 0, 1},
    {Kind::kScatter, kMapped, kCostLarge, kExchange, 0, 3 * kCostLarge, 1},
};

TEST(HostAlgorithms, CostWhatTheySay) {
  for (const Cost& cost : kCosts) {
    HostWorld world(kCostRanks, cost.memory, 3);
    for (uint32_t r = 0; r < kCostRanks; r++) {
      HostCall call;
      wire::Descriptor& d = call.descriptor;
      d = {cost.kind, 0, kNoMember, cost.bytes, ""};
      if (wire::is_rooted(cost.kind)) d.root = 1;
      if (wire::is_reduction(d.kind)) d.reduction = 1;
      EXPECT_EQ(make_host_plan(d, kCostRanks, cost.memory).algorithm, cost.algorithm);
      if (wire::is_exchange(d.kind)) {
        world.post(static_cast<Member>(r), exchange_of(d, r, kCostRanks));
        continue;
      }
      const bool root = r == d.root;
      const size_t inputs = cost.kind == Kind::kReduceScatter ? kCostRanks : 1;
      if (cost.kind != Kind::kBroadcast || root) call.inputs.resize(inputs);
      for (auto& input : call.inputs) input.resize(cost.bytes);
      if (cost.kind != Kind::kReduce || root) {
        call.output.resize(cost.bytes * (cost.kind == Kind::kAllgather ? kCostRanks : 1));
      }
      call.completed.assign(kCostRanks, 0);
      world.post(static_cast<Member>(r), std::move(call));
    }
    ASSERT_TRUE(world.run());
    for (uint32_t r = 0; r < kCostRanks; r++) {
      EXPECT_TRUE(world.calls(static_cast<Member>(r))[0]->status.ok());
    }
    const std::string what = wire::kind_name(cost.kind) + (" of " + std::to_string(cost.bytes)) +
                             (", memory " + std::to_string(static_cast<int>(cost.memory)));
    EXPECT_EQ(world.total(Counter::shm_slot_bytes), cost.slots) << what;
    // With mapped memory, some tensors are elsewhere and are read.
    const uint64_t mapped = world.total(Counter::shm_mapped_bytes);
    EXPECT_EQ(world.total(Counter::shm_direct_bytes) + mapped, cost.read) << what;
    EXPECT_TRUE(mapped == 0 || cost.memory == kMapped) << what;
    EXPECT_EQ(world.total(Counter::shm_rounds), kCostRanks * cost.rounds) << what;
  }
}

}  // namespace
}  // namespace mcast::test
