// Thousands of seeded schedules per run. A failing seed is printed and can be repeated alone:
// MCAST_TEST_SEED=1234 mcast_test_collective --gtest_filter='*Schedules*'
#include <gtest/gtest.h>

#include <cstdio>

#include "collective/schedule.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

void run_seeds(uint64_t share, const Flavour& flavour) {
  Outcome sum;
  const uint64_t least = flavour.duplicates ? 45 : 1;  // one schedule may dominate a few
  for_seeds(seeds(300, share, least), [&](uint64_t seed) -> std::string {
    const Schedule schedule = make_schedule(seed, flavour);
    if (replaying()) std::printf("%s\n", schedule.describe().c_str());
    const Outcome out = run_schedule(schedule);
    if (replaying()) {
      std::printf("chunks %lu gathered %lu gaps %lu repairs %lu remulticast %lu timeouts %lu\n",
                  out.chunks, out.gathered, out.gaps, out.repairs, out.remulticast, out.timeouts);
    }
    sum.gaps += out.gaps;
    sum.repairs += out.repairs;
    sum.remulticast += out.remulticast;
    sum.chunks += out.chunks;
    sum.duplicates += out.duplicates;
    sum.refused += out.refused;
    return out.error.empty() ? "" : out.error + "\n" + schedule.describe();
  });
  if (!replaying()) {
    EXPECT_GE(sum.duplicates, flavour.duplicates ? sum.chunks / 2 : 0);
    EXPECT_EQ(sum.refused > 0, flavour.refusals) << "times that the medium took nothing";
  }
  testing::Test::RecordProperty("chunks", static_cast<int>(sum.chunks));
  testing::Test::RecordProperty("gaps", static_cast<int>(sum.gaps));
  testing::Test::RecordProperty("repairs", static_cast<int>(sum.repairs + sum.remulticast));
}

class Schedules : public testing::TestWithParam<int> {};

TEST_P(Schedules, DeliverExactBytes) { run_seeds(static_cast<uint64_t>(GetParam()), {}); }
INSTANTIATE_TEST_SUITE_P(Shard, Schedules, testing::Range(0, 10));

// A large broadcast under loss whose datagrams are all gathered. Uses one fixed seed, since a few
// random ones may have no large broadcast.
TEST(Schedules, GatherFromTheCallersMemory) {
  const Outcome out = run_schedule(make_schedule(1, {}));
  EXPECT_EQ(out.error, "");
  EXPECT_GT(out.chunks, 1000u);
  // Guarded data is copied.
  const bool gathers = security_of_environment() == crypto::Mode::kOff;
  EXPECT_EQ(out.gathered > 1000, gathers) << out.gathered;
}

class CleanSchedules : public testing::TestWithParam<int> {};

TEST_P(CleanSchedules, SendEachChunkOnceAndRepairNothing) {
  run_seeds(static_cast<uint64_t>(GetParam()), {.faultless = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, CleanSchedules, testing::Range(0, 2));

class RingSchedules : public testing::TestWithParam<int> {};

TEST_P(RingSchedules, DeliverExactBytes) {
  run_seeds(static_cast<uint64_t>(GetParam()), {.ring = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, RingSchedules, testing::Range(0, 2));

class ReduceSchedules : public testing::TestWithParam<int> {};

// Reductions of all kinds among the other operations. Every result is compared bit for bit with a
// fold in rank order.
TEST_P(ReduceSchedules, DeliverExactBytes) {
  run_seeds(static_cast<uint64_t>(GetParam()), {.reduce = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, ReduceSchedules, testing::Range(0, 4));

class CleanReduceSchedules : public testing::TestWithParam<int> {};

TEST_P(CleanReduceSchedules, SendEachChunkOnceAndRepairNothing) {
  run_seeds(static_cast<uint64_t>(GetParam()), {.reduce = true, .faultless = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, CleanReduceSchedules, testing::Range(0, 1));

class RingReduceSchedules : public testing::TestWithParam<int> {};

TEST_P(RingReduceSchedules, DeliverExactBytes) {
  run_seeds(static_cast<uint64_t>(GetParam()), {.ring = true, .reduce = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, RingReduceSchedules, testing::Range(0, 1));

class ExchangeSchedules : public testing::TestWithParam<int> {};

// Blocks from rank to rank among all other operations.
TEST_P(ExchangeSchedules, DeliverExactBytes) {
  const auto share = static_cast<uint64_t>(GetParam());
  run_seeds(share, {.ring = share == 2, .reduce = share != 1, .exchange = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, ExchangeSchedules, testing::Range(0, 3));

class DuplicatedSchedules : public testing::TestWithParam<int> {};

TEST_P(DuplicatedSchedules, DeliverExactBytes) {
  const auto share = static_cast<uint64_t>(GetParam());
  run_seeds(share, {.reduce = share % 2 == 1, .duplicates = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, DuplicatedSchedules, testing::Range(0, 2));

class LastSchedules : public testing::TestWithParam<int> {};

TEST_P(LastSchedules, DeliverExactBytes) {
  const auto share = static_cast<uint64_t>(GetParam());
  run_seeds(share, {.ring = share == 2, .reduce = share == 1, .near_the_end = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, LastSchedules, testing::Range(0, 3));

class RefusedSchedules : public testing::TestWithParam<int> {};

TEST_P(RefusedSchedules, DeliverExactBytes) {
  const auto share = static_cast<uint64_t>(GetParam());
  run_seeds(share, {.reduce = share % 2 == 1, .refusals = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, RefusedSchedules, testing::Range(0, 2));

class SourceAuthSchedules : public testing::TestWithParam<int> {};

// Every block of another rank is compared once, however it was repaired and on either path.
TEST_P(SourceAuthSchedules, DeliverExactBytes) {
  const auto share = static_cast<uint64_t>(GetParam());
  run_seeds(share, {.ring = share == 2, .reduce = share != 0, .source_auth = true});
}
INSTANTIATE_TEST_SUITE_P(Shard, SourceAuthSchedules, testing::Range(0, 3));

// Schedules that `make soak` found. In both, data was gathered and then repaired before the medium
// took it.
TEST(FoundSchedules, DeliverExactBytes) {
  for (const uint64_t seed : {3452575975ull, 704015551605ull}) {
    EXPECT_EQ(run_schedule(make_schedule(seed, {.reduce = true, .refusals = true})).error, "")
        << seed;
  }
}

}  // namespace
}  // namespace mcast::test
