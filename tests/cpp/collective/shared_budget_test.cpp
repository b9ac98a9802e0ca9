// Groups that move large operations at the same time share half of the capacity of their endpoint's
// socket. Checks how much a stopped receiver finds in its queue, in whichever order the groups
// began.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/program.h"

namespace mcast::test {
namespace {

constexpr size_t kChunkBytes = 1408, kDatagramBytes = kChunkBytes + 32;
constexpr size_t kQueueBytes = 256u << 10;

// Counts the chunks sent to rank 1. While it is stopped, chunks that it has not placed are in its
// socket.
struct Sent {
  explicit Sent(ClusterOptions& o) {
    o.prepare = [this](SimNetwork& net) {
      net.set_datagram_hook([this](size_t from, size_t to, ConstBytes d) {
        wire::DatagramHeader h;
        if (from != to && to == 1 && is_data(d, h)) chunks++;
        return SimNetwork::Verdict::kPass;
      });
    };
  }
  size_t chunks = 0;
};

// Stops rank 1 and returns the bytes that accumulate in its socket meanwhile.
size_t piled_up(Cluster& c, const Sent& sent) {
  c.pause(1, true);
  c.run_for(200 * kMilli);
  uint64_t placed = 0;
  for (size_t g = 0; g < c.groups(); g++)
    placed += c.group(1, g).counters().get(Counter::chunks_placed);
  c.pause(1, false);
  return (sent.chunks - placed) * kDatagramBytes;
}

ClusterOptions groups_over(uint32_t ranks_of_group) {
  ClusterOptions o = ranks(ranks_of_group);
  o.group.agreed.chunk = kChunkBytes;
  o.group.agreed.budget = kQueueBytes;
  o.group.agreed.eager = 0;
  o.net.receive_budget = kQueueBytes;
  o.net.rate = 125e6;
  return o;
}

// The groups begin one after the other, `apart` from each other. The first ones were granted more
// than their share once the last has begun.
void expect_within_half(uint32_t groups, Nanos apart, bool all_gather) {
  SCOPED_TRACE(std::to_string(groups) + " groups, " + std::to_string(apart / kMicro) + " us apart" +
               (all_gather ? ", all-gathers" : ", broadcasts"));
  ClusterOptions o = groups_over(3);
  const Sent sent(o);
  Cluster c(o);
  for (uint32_t g = 1; g < groups; g++) c.add_group(o.group);
  Runs runs;
  constexpr size_t kBytes = 4u << 20;
  for (uint32_t g = 0; g < groups; g++) {
    for (Member r = 0; r < 3; r++) {
      runs.push_back(all_gather ? c.allgather(r, kBytes / 3, 100 + g, kNever, g)
                                : c.broadcast(r, 0, kBytes, 100 + g, kNever, g));
    }
    c.run_for(apart);
  }
  c.run_for(10 * kMilli);  // all run, and every root knows its share
  ASSERT_FALSE(std::any_of(runs.begin(), runs.end(), [](const auto& r) { return r->done(); }));
  const size_t queued = piled_up(c, sent);
  // If roots take turns, those that have not begun may use half as much in addition.
  const size_t most = kQueueBytes / 4 * (all_gather ? 3 : 2);
  EXPECT_LE(queued, most + groups * kLeastWindow * kDatagramBytes);
  if (!all_gather) {
    EXPECT_GE(queued, kQueueBytes / 4) << "the budget is not left unused";
  }
  finish(c, runs);
  EXPECT_EQ(c.net().totals().overflowed_data, 0u);
}

TEST(SharedBudget, GroupsKeepToHalfOfTheQueueTogether) {
  for (const bool all_gather : {false, true}) {
    for (const uint32_t groups : {1u, 2u, 3u, 8u}) {
      for (const Nanos apart : {Nanos{0}, 2 * kMilli})
        expect_within_half(groups, apart, all_gather);
    }
  }
}

// Blocks are shorter than a window. Roots continue when the other ranks have the data, so without a
// limit all blocks could wait for the stopped rank.
TEST(SharedBudget, SequentialRootsWaitForAStoppedReceiver) {
  for (const size_t block : {64u << 10, 128u << 10, 256u << 10, 1u << 20}) {
    for (Nanos at = 0; at < 12 * kMilli; at += 1500 * kMicro) {
      ClusterOptions o = groups_over(8);
      o.group.agreed.eager = 32 << 10;
      const Sent sent(o);
      Cluster c(o);
      Runs runs;
      for (Member r = 0; r < 8; r++) runs.push_back(c.allgather(r, block, 7));
      c.run_for(at + 1);
      EXPECT_LE(piled_up(c, sent), kQueueBytes / 4 * 3) << block << " " << at / kMicro;
      finish(c, runs);
      EXPECT_EQ(c.net().totals().overflowed_data, 0u);
    }
  }
}

// An operation whose root has not posted yet holds credit for a whole group's share, and returns it
// as other groups begin.
TEST(SharedBudget, WaitingGroupsReturnTheirCredit) {
  constexpr uint32_t kGroups = 6;
  ClusterOptions o = groups_over(3);
  const Sent sent(o);
  Cluster c(o);
  for (uint32_t g = 1; g < kGroups; g++) c.add_group(o.group);
  Runs runs;
  for (uint32_t g = 0; g < kGroups; g++) {
    for (Member r = 1; r < 3; r++) runs.push_back(c.broadcast(r, 0, 4u << 20, g, kNever, g));
    c.run_for(kMilli);
  }
  // The root posts all of them at once, and rank 1 is stopped before it has seen any data.
  c.run_for(5 * kMilli);
  for (uint32_t g = 0; g < kGroups; g++) runs.push_back(c.broadcast(0, 0, 4u << 20, g, kNever, g));
  const size_t queued = piled_up(c, sent);
  EXPECT_LE(queued, kQueueBytes / 2 + kGroups * kLeastWindow * kDatagramBytes);
  EXPECT_GE(queued, kQueueBytes / 4);
  finish(c, runs);
  EXPECT_EQ(c.net().totals().overflowed_data, 0u);
}

// If a stream has only the minimum of chunks in flight, they are reported one by one: it is slow
// but never stalls. Once it is alone, it gets the whole budget.
TEST(SharedBudget, StreamsGoOnWithTheLeastShare) {
  constexpr uint32_t kGroups = 40;
  ClusterOptions o = groups_over(2);
  Cluster c(o);
  for (uint32_t g = 1; g < kGroups; g++) c.add_group(o.group);
  Runs runs;
  for (uint32_t g = 0; g < kGroups; g++) {
    const size_t bytes = g == 0 ? 8u << 20 : 200'000;
    for (Member r = 0; r < 2; r++) runs.push_back(c.broadcast(r, 0, bytes, g, kNever, g));
  }
  const Nanos from = c.now();
  finish(c, runs);
  EXPECT_EQ(c.total(Counter::positions_sent), 0u) << "no stream waited for news of a window";
  // 16 MiB at 125 MB/s take 130 ms.
  EXPECT_LT(c.now() - from, 400 * kMilli);
  EXPECT_EQ(c.net().totals().overflowed_data, 0u);
}

}  // namespace
}  // namespace mcast::test
