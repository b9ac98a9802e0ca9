// Thousands of seeded schedules per run. A failing seed prints itself and reproduces alone:
//   MCAST_TEST_SEED=1234 mcast_test_collective --gtest_filter='*Schedules*'
#include <gtest/gtest.h>

#include <cstdlib>

#include "collective/schedule.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

void run_seeds(uint64_t first, uint64_t count, const Flavour& flavour) {
  Outcome sum;
  int failures = 0;
  const char* only = std::getenv("MCAST_TEST_SEED");
  if (only != nullptr) {
    first = std::strtoull(only, nullptr, 10);
    count = 1;
  }
  for (uint64_t seed = first; seed < first + count && failures < 3; seed++) {
    const Schedule schedule = make_schedule(seed, flavour);
    if (only != nullptr) std::printf("%s\n", schedule.describe().c_str());
    const Outcome out = run_schedule(schedule);
    if (!out.error.empty()) {
      failures++;
      ADD_FAILURE() << "MCAST_TEST_SEED=" << seed << ": " << out.error << "\n"
                    << schedule.describe();
    }
    if (only != nullptr) {
      std::printf("chunks %lu gaps %lu repairs %lu remulticast %lu timeouts %lu\n", out.chunks,
                  out.gaps, out.repairs, out.remulticast, out.timeouts);
    }
    sum.gaps += out.gaps;
    sum.repairs += out.repairs;
    sum.remulticast += out.remulticast;
    sum.chunks += out.chunks;
    sum.gathered += out.gathered;
  }
  if (only == nullptr && !flavour.ring) {
    EXPECT_GT(sum.gathered, 0u);
  }
  testing::Test::RecordProperty("chunks", static_cast<int>(sum.chunks));
  testing::Test::RecordProperty("gaps", static_cast<int>(sum.gaps));
  testing::Test::RecordProperty("repairs", static_cast<int>(sum.repairs + sum.remulticast));
}

constexpr uint64_t kPerShard = seeds(300);

class Schedules : public testing::TestWithParam<int> {};

TEST_P(Schedules, DeliverExactBytes) {
  run_seeds(1 + static_cast<uint64_t>(GetParam()) * kPerShard, kPerShard, {});
}
INSTANTIATE_TEST_SUITE_P(Shard, Schedules, testing::Range(0, 10));

class CleanSchedules : public testing::TestWithParam<int> {};

TEST_P(CleanSchedules, SendEachChunkOnceAndRepairNothing) {
  run_seeds(1 + static_cast<uint64_t>(GetParam()) * kPerShard, kPerShard, {.faultless = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, CleanSchedules, testing::Range(0, 2));

class RingSchedules : public testing::TestWithParam<int> {};

TEST_P(RingSchedules, DeliverExactBytes) {
  run_seeds(1 + static_cast<uint64_t>(GetParam()) * kPerShard, kPerShard, {.ring = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, RingSchedules, testing::Range(0, 2));

class ReduceSchedules : public testing::TestWithParam<int> {};

// Reductions of all kinds among the others; every result is compared bit for bit with folding in
// rank order.
TEST_P(ReduceSchedules, DeliverExactBytes) {
  run_seeds(1 + static_cast<uint64_t>(GetParam()) * kPerShard, kPerShard, {.reduce = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, ReduceSchedules, testing::Range(0, 4));

class CleanReduceSchedules : public testing::TestWithParam<int> {};

TEST_P(CleanReduceSchedules, SendEachChunkOnceAndRepairNothing) {
  run_seeds(1 + static_cast<uint64_t>(GetParam()) * kPerShard, kPerShard,
            {.reduce = true, .faultless = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, CleanReduceSchedules, testing::Range(0, 1));

class RingReduceSchedules : public testing::TestWithParam<int> {};

TEST_P(RingReduceSchedules, DeliverExactBytes) {
  run_seeds(1 + static_cast<uint64_t>(GetParam()) * kPerShard, kPerShard,
            {.ring = true, .reduce = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, RingReduceSchedules, testing::Range(0, 1));

}  // namespace
}  // namespace mcast::test
