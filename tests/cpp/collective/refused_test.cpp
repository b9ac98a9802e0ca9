// A kernel that accepts no more datagrams of one rank while its streams work: buffers stay full, as
// behind a queue that is shaped to zero. (schedules_test.cpp covers refusals that end.)
#include <gtest/gtest.h>

#include "support/program.h"
#include "transport/interceptor.h"

namespace mcast::test {
namespace {

// Refuses the datagrams of `victim` from its `after`-th attempt on.
ClusterOptions refused(uint32_t n, Member victim, uint64_t after) {
  ClusterOptions o = ranks(n);
  auto next = std::make_shared<Member>(Member{0});
  o.wrap = [victim, after, next](std::unique_ptr<Transport> inner) {
    if ((*next)++ != victim) return inner;
    const std::string rule = "refuse:after=" + std::to_string(after);
    return std::move(intercept(std::move(inner), rule, nullptr)).value();
  };
  return o;
}

TEST(RefusedForever, FromTheBeginningTheGroupUsesTheRing) {
  Cluster c(refused(4, 2, 0));
  for (Member r = 0; r < 4; r++) {
    EXPECT_EQ(c.group(r).core().path(), GroupCore::Path::kRing);
    EXPECT_TRUE(
        has(Status(Code::kInternal, c.group(r).core().path_reason()), "does not hear rank 2"))
        << c.group(r).core().path_reason();
  }
  EXPECT_EQ(c.group(2).counters().get(Counter::probes_sent), 0u);
  EXPECT_EQ(c.group(2).counters().get(Counter::datagrams_sent), 0u);
  EXPECT_GT(c.group(2).counters().get(Counter::would_block), 0u);
  Runs runs;
  for (Member r = 0; r < 4; r++) {
    runs.push_back(c.allgather(r, 50'000, 1));
    runs.push_back(c.broadcast(r, 2, 70'000, 2));
    runs.push_back(c.reduction(r, wire::Kind::kAllreduce, 0, 300'000, 3));
    runs.push_back(c.allgather(r, 10, 4));
  }
  finish(c, runs);
}

// No other rank has the rank's bytes, so operations that need them end by the time limit, on all
// ranks at about the same time. Data that was sent before is exact.
TEST(RefusedForever, LaterAllRaiseAtTheTimeLimit) {
  for (const uint64_t after : {150, 200, 400, 1000}) {
    for (const size_t bytes : {400, 300'000}) {
      const Nanos limit = 5 * kSecond;
      Cluster c(refused(3, 1, after));
      ASSERT_EQ(c.group(0).core().path(), GroupCore::Path::kMulticast);
      uint64_t failed = 0;
      for (uint64_t id = 0; id < 2000 && failed == 0; id += 4) {
        Runs runs;
        for (uint64_t k = 1; k <= 4; k++) {
          for (Member r = 0; r < 3; r++) {
            runs.push_back(k % 2 == 0 ? c.allgather(r, bytes, id + k, limit)
                                      : c.broadcast(r, 1, bytes, id + k, limit));
          }
        }
        const Nanos from = c.now();
        const bool ended = c.run([&] { return all_done(runs); }, limit + 3 * kSecond);
        ASSERT_TRUE(ended) << "hangs; " << bytes << " bytes, after " << after;
        for (const auto& run : runs) {
          ASSERT_EQ(run->calls, 1);
          if (run->status.ok()) {
            ASSERT_EQ(run->check(3), "");
            continue;
          }
          failed++;
          EXPECT_EQ(run->status.code(), Code::kTimeout) << run->status.to_string();
          EXPECT_GE(run->done_at, from + limit);
        }
      }
      EXPECT_GT(failed, 0u) << bytes << " bytes, after " << after;
      EXPECT_GT(c.group(1).counters().get(Counter::would_block), 0u);
      // The group has failed on all ranks.
      Runs later = barrier_all(c);
      ASSERT_TRUE(c.run([&] { return all_done(later); }, kSecond));
      for (const auto& run : later) EXPECT_FALSE(run->status.ok());
    }
  }
}

}  // namespace
}  // namespace mcast::test
