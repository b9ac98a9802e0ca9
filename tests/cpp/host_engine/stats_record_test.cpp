// An engine's record about a group reaches its client whole, or as much of it as fits into a
// message.
#include "host_engine/ipc/stats_record.h"

#include <gtest/gtest.h>

#include "base/counters.h"

namespace mcast::test {
namespace {

GroupStats shape(size_t ranks) {
  GroupStats s;
  for (size_t c = 0; c < kCounterCount; c++) {
    s.counters.emplace_back(counter_name(static_cast<Counter>(c)), 0);
  }
  s.reduce_counters.resize(kCounterCount);
  s.repair_from_to.resize(ranks);
  return s;
}

GroupStats full() {
  GroupStats s = shape(3);
  s.path = "multicast";
  s.failure = "two\nlines";
  s.chunk = 8192;
  s.counters[3].second = 7;
  s.reduce_counters[3] = 5;
  s.repair_from_to[2] = {11, 12};
  s.security.mode = "sealed";
  s.security.suite = "aes128gcm";
  s.security.library = "OpenSSL 3";
  s.security.trust_store = true;
  s.security.keys_locked = false;
  s.security.sealed = 21;
  s.security.opened = 22;
  s.security.untried = 23;
  s.security.epoch = 24;
  s.aggregation.no_partial = "ranks of a host contribute together";
  s.aggregation.aggregators = {{"a:7117", "admitted", "", 2, 1.5},
                               {"b:7117", "refused", "jobs", 0, 0}};
  AggregationReport& report = s.aggregation.report;
  AggregationReport::Plan plan;
  plan.kind = wire::Kind::kReduceScatter;
  plan.sequence = 9;
  plan.bytes = 1u << 30;
  plan.placement.reason = PlacementReason::kSmallGain;
  plan.placement.part = 40'000;
  plan.placement.stations = {30'000, 10'000};
  plan.placement.owner = kWhole - 40'000;
  plan.placement.kept = true;
  plan.placement.planned = 100;
  plan.placement.workers = 200;
  plan.placement.alone = 300;
  plan.placement.served = 400;
  plan.stations = {{"a:7117#0", kWhole, false}, {"a:7117#1", kWhole / 2, true}};
  report.plans = {plan, {}};
  report.waiting = AggregationReport::Waiting{4, {1, 2}, 5 * kSecond};
  report.partial.operations = 3;
  report.partial.excused = 1;
  report.partial.last = AggregationReport::Partial::Last{8, {2}, 2};
  return s;
}

TEST(StatsRecord, FieldsAreReadAsWritten) {
  const GroupStats told = full();
  GroupStats read = shape(3);
  read.aggregation.report.waiting = AggregationReport::Waiting{};  // from the record before
  read_stats(encode_stats(told), read);
  EXPECT_EQ(read.path, told.path);
  EXPECT_EQ(read.security.suite, told.security.suite);
  EXPECT_EQ(read.security.library, told.security.library);
  EXPECT_TRUE(read.security.trust_store);
  EXPECT_FALSE(read.security.keys_locked);
  EXPECT_EQ(read.security.sealed, 21u);
  EXPECT_EQ(read.security.opened, 22u);
  EXPECT_EQ(read.security.untried, 23u);
  EXPECT_EQ(read.security.epoch, 24u);
  EXPECT_EQ(read.failure, "two lines");
  EXPECT_EQ(read.chunk, told.chunk);
  EXPECT_EQ(read.counters, told.counters);
  EXPECT_EQ(read.reduce_counters, told.reduce_counters);
  EXPECT_EQ(read.repair_from_to, told.repair_from_to);
  EXPECT_EQ(read.aggregation.no_partial, told.aggregation.no_partial);
  ASSERT_EQ(read.aggregation.aggregators.size(), 2u);
  EXPECT_EQ(read.aggregation.aggregators[0].address, "a:7117");
  EXPECT_EQ(read.aggregation.aggregators[0].stations, 2u);
  EXPECT_EQ(read.aggregation.aggregators[0].capacity, 1.5);
  EXPECT_EQ(read.aggregation.aggregators[1].state, "refused");
  EXPECT_EQ(read.aggregation.aggregators[1].reason, "jobs");
  const AggregationReport &a = read.aggregation.report, &b = told.aggregation.report;
  ASSERT_EQ(a.plans.size(), 2u);
  EXPECT_EQ(a.plans[0].kind, b.plans[0].kind);
  EXPECT_EQ(a.plans[0].sequence, 9u);
  EXPECT_EQ(a.plans[0].bytes, b.plans[0].bytes);
  const Placement &p = a.plans[0].placement, &q = b.plans[0].placement;
  EXPECT_EQ(p.reason, q.reason);
  EXPECT_EQ(p.part, q.part);
  EXPECT_EQ(p.stations, q.stations);
  EXPECT_EQ(p.owner, q.owner);
  EXPECT_TRUE(p.kept);
  EXPECT_EQ(p.planned + p.workers + p.alone + p.served, 1000u);
  ASSERT_EQ(a.plans[0].stations.size(), 2u);
  EXPECT_EQ(a.plans[0].stations[1].address, "a:7117#1");
  EXPECT_EQ(a.plans[0].stations[1].capacity, kWhole / 2);
  EXPECT_TRUE(a.plans[0].stations[1].lost);
  ASSERT_TRUE(a.waiting && a.partial.last);
  EXPECT_EQ(a.waiting->ranks, (std::vector<Member>{1, 2}));
  EXPECT_EQ(a.waiting->time, 5 * kSecond);
  EXPECT_EQ(a.partial.operations, 3u);
  EXPECT_EQ(a.partial.excused, 1u);
  EXPECT_EQ(a.partial.last->ranks, std::vector<Member>{2});
  EXPECT_EQ(a.partial.last->contributors, 2u);
  // The end of the waiting is reported too.
  read_stats(encode_stats(shape(3)), read);
  EXPECT_TRUE(read.aggregation.report.plans.empty());
  EXPECT_FALSE(read.aggregation.report.waiting);
}

TEST(StatsRecord, FieldsBeyondTheLimitAreLeftOut) {
  GroupStats told = full();
  told.repair_from_to.assign(5000, {1'000'000'007, 1'000'000'009});
  const std::string whole = encode_stats(told);
  for (size_t most = 0; most < 2000; most += 7) EXPECT_LE(encode_stats(told, most).size(), most);
  const std::string cut = encode_stats(told, 65'000);
  EXPECT_LT(cut.size(), whole.size());
  GroupStats read = shape(5000);
  read_stats(cut, read);
  EXPECT_EQ(read.counters[3].second, 7u);
  EXPECT_EQ(read.aggregation.report.plans.size(), 2u) << "repairs go first";
}

TEST(StatsRecord, AnyTextIsRead) {
  for (const char* text :
       {"plans=18446744073709551615\n", "plans=2\nplans.0.dealt=99999999\n",
        "plans=1\nplans.0.kind=200\nplans.0.stations=3\n", "waiting=1\nwaiting.ranks=1, x, 3\n",
        "waiting=1\nwaiting.time=18446744073709551615\n",
        "aggregators=1\naggregators.0.capacity=x\n", "repair_from.0=-1\n", "=\n==\n\n"}) {
    GroupStats read = shape(1);
    read_stats(text, read);
    for (const auto& plan : read.aggregation.report.plans) {
      EXPECT_EQ(plan.placement.stations.size(), plan.stations.size());
    }
  }
}

}  // namespace
}  // namespace mcast::test
