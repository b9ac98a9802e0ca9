// Late ranks are named in member 0's report and in the errors of operations that pass their limit,
// from the stations' reports. Also the planner's decisions on the last operations.
#include "aggregation/member/straggler_reports.h"

#include <gmock/gmock.h>

#include "aggregation/station_cluster.h"
#include "support/errors.h"

namespace mcast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using wire::Kind;

constexpr size_t kLarge = 3 << 19;  // more than the minimum for stations

wire::Descriptor large_sum(Kind kind, size_t bytes) {
  wire::Descriptor d{kind, static_cast<uint8_t>(Element::kFloat32), kNoMember, bytes, ""};
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  return d;
}

Runs call_but(StationCluster& c, const wire::Descriptor& d, Member late, Nanos timeout) {
  Runs runs;
  for (Member r = 0; r < c.size(); r++) {
    if (r != late) runs.push_back(c.call(r, d, 1, timeout));
  }
  return runs;
}

AggregationReport report_of(StationCluster& c, Member r) {
  return c.group(r).core().aggregation_report(c.clock(r));
}

TEST(Stragglers, AreReportedWhileTheyAreLate) {
  StationCluster c(with_stations(4));
  c.add_stations({65536, 65536});
  const auto d = large_sum(Kind::kAllreduce, kLarge);
  Runs runs = call_but(c, d, 2, kNever);
  c.run_for(kSecond);
  const auto waiting = report_of(c, 0).waiting;
  ASSERT_TRUE(waiting);
  EXPECT_EQ(waiting->sequence, 0u);
  EXPECT_THAT(waiting->ranks, ElementsAre(2));
  EXPECT_GT(waiting->time, 900 * kMilli);
  EXPECT_LT(waiting->time, kSecond);
  EXPECT_FALSE(report_of(c, 1).waiting) << "stations tell member 0";
  runs.push_back(c.call(2, d, 1));
  finish(c, runs);
  EXPECT_FALSE(report_of(c, 0).waiting);
}

TEST(Stragglers, AreNamedWhereTheOperationTimesOut) {
  for (const bool stopped : {false, true}) {
    SCOPED_TRACE(stopped ? "stopped" : "late");
    StationCluster c(with_stations(4));
    c.add_stations({65536});
    if (stopped) c.pause(2, true);
    const Runs runs = call_but(c, large_sum(Kind::kAllreduce, kLarge), 2, 2 * kSecond);
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
    for (const auto& run : runs) {
      EXPECT_EQ(run->status.code(), Code::kTimeout);
      EXPECT_THAT(run->status.message(), HasSubstr("; aggregators are waiting for rank(s) 2: "));
      if (stopped) {
        EXPECT_THAT(run->status.message(), HasSubstr("rank(s) 2 have not answered"));
      } else {
        EXPECT_TRUE(is_error(run->status, ErrorId::ranks_late, {{"ranks", "2"}}));
      }
    }
  }
}

TEST(Stragglers, AreNamedWithoutStationsToo) {
  StationCluster c(with_stations(4));
  const Runs runs = call_but(c, large_sum(Kind::kAllreduce, kLarge), 2, kSecond);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
  for (const auto& run : runs) {
    EXPECT_TRUE(is_error(run->status, ErrorId::ranks_late, {{"ranks", "2"}}));
    EXPECT_THAT(run->status.message(), Not(HasSubstr("aggregators")));
  }
}

// A rank that has died is missed as dead, whatever stations report.
TEST(Stragglers, DeadRankIsReportedLost) {
  StationCluster c(with_stations(4));
  c.add_stations({65536});
  const Runs runs = call_but(c, large_sum(Kind::kAllreduce, kLarge), 2, 10 * kSecond);
  c.run_for(300 * kMilli);
  c.kill(2);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 5 * kSecond));
  for (const auto& run : runs) {
    EXPECT_TRUE(is_error(run->status, ErrorId::rank_lost, {{"rank", "2"}}));
  }
}

TEST(StragglerReports, LastAsLongAsTheyAreRepeated) {
  StragglerReports reports;
  const Hosts hosts({0, 1, 2, 1});
  reports.on_report(4, 7, {0, 100, {2}}, hosts, kSecond);
  EXPECT_EQ(reports.text(7, 7, kSecond), "rank(s) 1, 3: 100 ms");
  EXPECT_EQ(reports.text(7, 7, kSecond + 150 * kMilli), "rank(s) 1, 3: 250 ms");
  EXPECT_EQ(reports.text(7, 6, kSecond), "") << "another operation";
  EXPECT_EQ(reports.text(8, 8, kSecond), "") << "it is over";
  // The station has not reported for longer than its deadline allows.
  EXPECT_EQ(reports.text(7, 7, kSecond + 201 * kMilli), "");
  // Another station reports an earlier operation and other hosts.
  reports.on_report(5, 6, {3, 40, {5}}, hosts, kSecond);
  EXPECT_EQ(reports.text(6, 7, kSecond), "rank(s) 0, 2: 40 ms");
  reports.on_report(4, 6, {3, 60, {2}}, hosts, kSecond);
  EXPECT_EQ(reports.text(6, 7, kSecond), "rank(s) 0, 1, 2, 3: 60 ms");
  reports.on_report(4, 6, {3, 60, {}}, hosts, kSecond);
  reports.on_report(5, 6, {3, 60, {uint64_t{1} << 63}}, hosts, kSecond);
  EXPECT_EQ(reports.text(6, 7, kSecond), "") << "nobody, and nobody that there is";
}

TEST(PlannedReductions, AreTheLastLargeOnesWithTheReason) {
  StationCluster c(with_stations(4));
  Runs runs = call_but(c, large_sum(Kind::kAllreduce, kLarge), kNoMember, kNever);
  finish(c, runs);
  AggregationReport report = report_of(c, 3);
  ASSERT_EQ(report.plans.size(), 1u);
  EXPECT_EQ(report.plans[0].placement.reason, PlacementReason::kNoStations);
  EXPECT_EQ(report.plans[0].bytes, kLarge);
  EXPECT_TRUE(report.plans[0].stations.empty());

  c.add_stations({65536, 32768}, 1, 1);
  finish(c, call_but(c, large_sum(Kind::kAllreduce, kLarge), kNoMember, kNever));
  finish(c, call_but(c, large_sum(Kind::kReduceScatter, 64 << 10), kNoMember, kNever));
  finish(c, call_but(c, large_sum(Kind::kAllreduce, 64), kNoMember, kNever));
  report = report_of(c, 3);
  ASSERT_EQ(report.plans.size(), 2u);
  for (const AggregationReport::Plan& plan : report.plans) {
    ASSERT_EQ(plan.stations.size(), 2u);
    EXPECT_EQ(plan.stations[1].capacity, 32768u);
    if (plan.kind == Kind::kAllreduce) {
      EXPECT_EQ(plan.sequence, 1u) << "small ones are not shown";
      EXPECT_EQ(plan.placement.reason, PlacementReason::kPlaced);
      EXPECT_GT(plan.placement.part, 0u);
      EXPECT_EQ(plan.placement.stations[0] + plan.placement.stations[1], plan.placement.part);
      EXPECT_LT(plan.placement.planned, plan.placement.workers);
    } else {
      EXPECT_EQ(plan.bytes, 4u * (64 << 10));
      EXPECT_EQ(plan.placement.reason, PlacementReason::kSmall);
    }
  }
}

}  // namespace
}  // namespace mcast::test
