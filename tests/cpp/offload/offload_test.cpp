// Groups whose chunks the kernel of csrc/dpa receives: cases that the tests of
// tests/cpp/collective, which this program runs too, do not cover.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "collective/schedule.h"
#include "dpa/public_faults.h"
#include "offload/kernel_transport.h"
#include "support/program.h"
#include "support/seeds.h"

namespace mcast::offload {
namespace {

using namespace test;  // NOLINT
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kChunk = 1408;

// Totals since it was made.
class Since {
 public:
  uint64_t placed() const { return kernel_totals().placed - before_.placed; }
  uint64_t slices() const { return kernel_totals().slices - before_.slices; }
  uint64_t retired() const { return kernel_totals().retired - before_.retired; }
  uint64_t revoked() const { return kernel_totals().revoked - before_.revoked; }
  uint64_t handed_on() const { return kernel_totals().handed_on - before_.handed_on; }
  uint64_t failures() const { return kernel_totals().failures - before_.failures; }

 private:
  const KernelTotals before_ = kernel_totals();
};

// Sets the options of clusters that are made during its lifetime.
class With {
 public:
  explicit With(const KernelOptions& options) { kernel_options() = options; }
  ~With() { kernel_options() = before_; }

 private:
  const KernelOptions before_ = kernel_options();
};

TEST(Offload, ChunksArePlacedAndCountedAsIfTheyHadCome) {
  Cluster c(ranks(4));
  const Since since;
  finish(c, allgather_all(c, 40 * kChunk + 5, 1));
  EXPECT_EQ(since.placed(), 4u * 3 * 41);
  EXPECT_EQ(c.total(Counter::chunks_placed), 4u * 3 * 41);
  EXPECT_GE(c.total(Counter::datagrams_received), 4u * 3 * 41);
  EXPECT_GE(c.total(Counter::datagram_bytes_received), 4u * 3 * (40 * kChunk + 5 + 41 * 32));
  EXPECT_EQ(c.total(Counter::gaps), 0u);
  EXPECT_EQ(since.slices(), 12u);
  EXPECT_EQ(since.retired(), 12u);
}

TEST(Offload, SmallOperationsToo) {
  Cluster c(ranks(3));
  const Since since;
  finish(c, broadcast_all(c, 1, 100, 1));
  EXPECT_EQ(since.placed(), 2u);
  EXPECT_EQ(since.retired(), 2u);
}

// Chunks that arrive before the post, and positions, belong to no slice.
TEST(Offload, DatagramsOfNoSliceReachTheGroup) {
  Cluster c(ranks(3));
  const Since since;
  Runs runs;
  for (const Member r : {0, 1}) runs.push_back(c.broadcast(r, 0, 4 * kChunk, 1));
  c.run_for(20 * kMilli);
  EXPECT_EQ(c.group(2).counters().get(Counter::chunks_staged), 4u);
  runs.push_back(c.broadcast(2, 0, 4 * kChunk, 1));
  finish(c, runs);
  EXPECT_EQ(since.placed(), 4u) << "at rank 1";
  EXPECT_GE(since.handed_on(), 4u);
  EXPECT_EQ(c.total(Counter::repair_chunks_sent), 0u);
}

TEST(Offload, PositionsReachTheGroup) {
  Cluster c(ranks(3));
  c.net().set_datagram_hook([](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    const bool tail = is_data(d, h) && h.chunk >= 38 && from != to && to == 2;
    return tail ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
  });
  finish(c, broadcast_all(c, 0, 40 * kChunk, 1));
  EXPECT_GT(c.group(2).counters().get(Counter::positions_received), 0u);
  EXPECT_EQ(c.group(2).counters().get(Counter::repair_chunks_received), 2u);
}

// Only the datagram reports the abort, since frames are dropped.
TEST(Offload, AnAbortReachesTheGroup) {
  Cluster c(ranks(3));
  Runs runs;
  for (const Member r : {0, 1}) runs.push_back(c.broadcast(r, 2, 100 * kChunk, 1));
  c.net().set_frame_hook([](size_t, size_t, Channel, ConstBytes) { return false; });
  c.group(0).core().fail(Status(Code::kAborted, "enough"), 0, c.clock(0));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, kSecond));
  EXPECT_TRUE(has(runs[1]->status, "enough")) << runs[1]->status.to_string();
  EXPECT_EQ(c.group(1).counters().get(Counter::aborts_received), 1u);
}

// A socket would hold eleven chunks; the hart continues while the rank is stopped.
TEST(Offload, AStoppedRankReceives) {
  ClusterOptions o = ranks(3);
  o.net.rate = 1.25e8;
  o.net.receive_budget = 16 << 10;
  Cluster c(o);
  const Since since;
  Runs runs = broadcast_all(c, 0, 40 * kChunk, 1);
  c.run_for(10 * kMicro);
  c.pause(2, true);
  c.run_for(50 * kMilli);
  EXPECT_FALSE(runs[2]->done());
  c.pause(2, false);
  finish(c, runs);
  EXPECT_EQ(c.net().totals().overflowed, 0u);
  EXPECT_EQ(c.total(Counter::gaps), 0u);
  EXPECT_EQ(since.placed(), 80u);
}

// Every datagram is repeated when its operation is over and the caller owns the memory.
TEST(Offload, LateDatagramsTouchNothing) {
  Cluster c(ranks(3));
  const Since since;
  std::vector<std::vector<std::byte>> sent;
  c.net().set_datagram_hook([&](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    if (from == to && is_data(d, h)) sent.emplace_back(d.begin(), d.end());
    return SimNetwork::Verdict::kPass;
  });
  Runs runs = broadcast_all(c, 0, 50 * kChunk, 1);
  finish(c, runs);
  const uint64_t placed = since.placed();
  const auto unwanted = [&] { return c.total(Counter::stale) + c.total(Counter::duplicates); };
  const uint64_t before = unwanted();
  for (const auto& d : sent) c.net().inject(1, d);
  c.run_for(20 * kMilli);
  EXPECT_EQ(since.placed(), placed);
  EXPECT_EQ(unwanted(), before + 50);
  runs.clear();  // Guarded checks for late writes
}

// Duplicates that the hart drops are counted for the group.
TEST(Offload, DuplicatesAreCounted) {
  ClusterOptions o = ranks(2);
  Cluster c(o);
  c.net().faults().duplicate = 1;
  c.net().faults().copy_delay = 1;
  finish(c, broadcast_all(c, 0, 60 * kChunk, 1));
  c.run_for(20 * kMilli);
  EXPECT_EQ(
      c.group(1).counters().get(Counter::duplicates) + c.group(1).counters().get(Counter::stale),
      60u);
}

// Other ranks are not notified of this rank's completion while its device may write. Otherwise the
// root could return the memory to its caller, and repetitions would have other bytes.
TEST(Offload, AnOperationIsCompleteWhenItsSlicesAreRetired) {
  Cluster c(ranks(3));
  const Since since;
  uint64_t told = 0;
  c.net().set_frame_hook([&](size_t from, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (from == 2 && wire::parse_frame(frame, h) && h.type == wire::FrameType::kComplete) {
      told++;
      EXPECT_FALSE(dynamic_cast<KernelTransport&>(c.lane(2).transport()).has_slices());
    }
    return true;
  });
  finish(c, allgather_all(c, 200 * kChunk, 1));
  EXPECT_EQ(since.retired(), since.slices());
  EXPECT_GT(told, 0u);
}

// The group fails while writes are in flight: the memory is given back when they have landed.
TEST(Offload, AFailedOperationKeepsItsMemoryUntilItsSlicesRetire) {
  uint64_t waited = 0;
  for (const uint64_t seed : seeds(40)) {
    ClusterOptions o = ranks(3);
    o.net.seed = seed;
    Cluster c(o);
    Runs runs = allgather_all(c, 200 * kChunk, 1);
    Rng rng(seed);
    const uint64_t chunks = 1 + rng.below(300);
    c.run([&] { return c.total(Counter::chunks_placed) >= chunks; });
    c.group(1).core().fail(Status(Code::kAborted, "enough"), 1, c.clock(1));
    c.group(1).core().deliver();
    waited += runs[1]->done() ? 0 : 1;
    EXPECT_EQ(c.group(1).core().quiet(), runs[1]->done());
    ASSERT_TRUE(c.run([&] { return all_done(runs); })) << seed;
    for (const auto& r : runs) EXPECT_EQ(r->calls, 1);
    c.run_for(20 * kMilli);
    for (Member r = 0; r < 3; r++) EXPECT_TRUE(c.group(r).core().quiet());
  }
  EXPECT_GT(waited, 0u);
}

TEST(Offload, AGroupThatGoesHasItsSlicesRevoked) {
  Cluster c(ranks(3));
  const Since since;
  Runs runs = allgather_all(c, 200 * kChunk, 1);
  c.run([&] { return c.total(Counter::chunks_placed) >= 100; });
  GroupCore& core = c.group(1).core();
  core.fail(Status(Code::kClosed, "gone"), 1, c.clock(1));
  core.deliver();
  EXPECT_FALSE(runs[1]->done());
  c.lane(1).remove_group(core.params().tag);
  EXPECT_TRUE(runs[1]->done());
  EXPECT_GT(since.revoked(), 0u);
  c.run([&] { return all_done(runs); });
}

// A write or a receive ends with an error now and then: the worker is replaced, its slices are
// lost, and repair delivers the data in flight.
TEST(Offload, OperationsEndWellWhenWorkersFail) {
  KernelOptions failing = kernel_options();
  failing.failing = 0.02;
  const With with(failing);
  const Since since;
  for_seeds(seeds(40), [&](uint64_t seed) {
    Schedule schedule = make_schedule(seed, {});
    if (schedule.faultless()) schedule.net.faults.drop = 0.001;  // repairs are to be expected
    return run_schedule(schedule).error;
  });
  if (!replaying()) {
    EXPECT_GT(since.failures(), 20u);
  }
}

// ---- the faults of the public code ----

// The findings for a broadcast to one receiver whose chunks are lost, repeated and out of order.
std::set<std::string> findings(enum public_fault fault, double failing = 0) {
  std::set<std::string> found;
  KernelOptions options;
  options.kernel = public_receive;
  options.immediates = true;
  options.failing = failing;
  options.on_broken = [&](const std::string& rule) { found.insert(rule); };
  const With with(options);
  for (uint64_t seed = 1; seed <= 20; seed++) {
    ClusterOptions o = test::ranks(2);
    o.net.seed = seed;
    Cluster c(o);
    ::public_fault = fault;
    SimFaults& f = c.net().faults();
    f.drop = f.duplicate = f.reorder = 0.1;
    f.copy_delay = f.reorder_delay = 20 * kMicro;
    Runs runs = broadcast_all(c, 0, 99 * kChunk + 7, 1);
    if (!c.run([&] { return all_done(runs); }, 200 * kMilli)) found.insert("hangs");
    for (const auto& r : runs) {
      if (r->done() && r->check(2) != "") found.insert("wrong bytes");
    }
    ::public_fault = FAULT_NONE;
  }
  return found;
}

TEST(OffloadPublicFaults, WithoutThemNothingIsFound) {
  EXPECT_THAT(findings(FAULT_NONE), testing::IsEmpty());
  EXPECT_THAT(findings(FAULT_NONE, 0.02), testing::IsEmpty());
}

TEST(OffloadPublicFaults, ADuplicateIsCountedTwice) {
  EXPECT_THAT(findings(FAULT_DUPLICATE_COUNTED), testing::Contains("counts other than bits"));
}

TEST(OffloadPublicFaults, TheTailsLengthGoesToTheChunkThatComesLast) {
  EXPECT_THAT(findings(FAULT_SHORT_TAIL), testing::Contains("write beyond its destination"));
}

TEST(OffloadPublicFaults, AnErrorIsTakenForSuccess) {
  EXPECT_THAT(findings(FAULT_ERROR_IS_SUCCESS, 0.05), Not(testing::IsEmpty()));
}

TEST(OffloadPublicFaults, ASlotIsPostedAgainBeforeItWasWrittenOut) {
  EXPECT_THAT(findings(FAULT_EARLY_REPOST),
              testing::Contains("slot posted again before it was written out"));
}

TEST(OffloadPublicFaults, TheLastWritesAreNeverSignalled) {
  EXPECT_THAT(findings(FAULT_NO_TAIL_SIGNAL), testing::Contains("hangs"));
}

}  // namespace
}  // namespace mcast::offload
