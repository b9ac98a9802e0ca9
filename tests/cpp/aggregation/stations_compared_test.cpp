// Stations that are as fast as the planner estimated fold; others rest, on all ranks from the same
// operation on. The bits stay the same.
#include "aggregation/station_cluster.h"

namespace mcast::test {
namespace {

using wire::Kind;

constexpr size_t kSummed = 3 << 19;  // bytes

struct ComparedWorld {
  ComparedWorld() : c(options()) {
    c.make_stations({65536, 65536}, 0, 0);
    std::vector<wire::StationEntry> entries;
    for (size_t j = 0; j < c.stations(); j++) {
      const StreamAddress at = c.station(j).address();
      entries.push_back({900 + at.uid, at.uid, 65536, at.port, at.host, "", {}});
    }
    c.fold(0).roster().propose(std::move(entries));
  }
  static ClusterOptions options() {
    ClusterOptions o = with_stations(4);
    o.group.agreed.aggregate = AggregateMode::kCareful;
    o.net.latency = 10 * kMilli;  // so that few operations are enough for a measurement
    return o;
  }
  void slow(Nanos every) {
    for (size_t j = 0; j < c.stations(); j++) c.station(j).every = every;
  }
  void sum() {
    wire::Descriptor d{Kind::kAllreduce, static_cast<uint8_t>(Element::kFloat32), kNoMember,
                       kSummed, ""};
    d.reduction = static_cast<uint8_t>(Reduction::kSum);
    Runs runs;
    id++;
    for (Member r = 0; r < c.size(); r++) runs.push_back(c.call(r, d, id));
    finish(c, runs);
  }
  const StationSet& set(Member r) { return *c.fold(r).table().latest(); }
  bool all(bool resting) {
    for (Member r = 0; r < c.size(); r++) {
      if (set(r).resting != resting || set(r).from != set(0).from) return false;
    }
    return true;
  }
  AggregationReport::Plan plan(Member r) {
    return c.group(r).core().aggregation_report(c.clock(r)).plans.at(0);
  }
  // Runs reductions until all stations work, or rest, on all ranks.
  bool become(bool resting, int most) {
    for (int i = 0; i < most; i++) {
      if (all(resting)) return true;
      sum();
    }
    return all(resting);
  }

  StationCluster c;
  uint64_t id = 0;
};

TEST(StationsCompared, SlowOnesRestAndAreTriedAgain) {
  ComparedWorld w;
  w.c.run_for(kSecond);
  ASSERT_TRUE(w.all(false));
  w.slow(200 * kMilli);
  w.sum();
  EXPECT_EQ(w.plan(0).placement.reason, PlacementReason::kPlaced);
  w.c.run_for(StationTrial::kFirst);
  ASSERT_TRUE(w.become(true, 100));
  // The trial is decided and does not change.
  for (int i = 0; i < 30; i++) w.sum();
  ASSERT_TRUE(w.all(true));
  const uint64_t folded = w.c.total(Counter::agg_operations);
  for (int i = 0; i < 5; i++) w.sum();
  EXPECT_EQ(w.c.total(Counter::agg_operations), folded);
  for (Member r = 0; r < w.c.size(); r++) {
    EXPECT_EQ(w.plan(r).placement.reason, PlacementReason::kSlower);
    EXPECT_EQ(w.plan(r).placement.part, 0u);
    EXPECT_EQ(w.plan(r).stations.size(), 2u);
  }
  EXPECT_GT(w.plan(0).with, w.plan(0).without);
  EXPECT_GT(w.plan(0).without, 0u);
}

TEST(StationsCompared, ALossWhileTheyRestLeavesTheOthers) {
  ComparedWorld w;
  w.c.run_for(kSecond);
  w.slow(200 * kMilli);
  w.c.run_for(StationTrial::kFirst);
  ASSERT_TRUE(w.become(true, 100));
  w.c.kill_station(0);
  for (int i = 0; i < 5; i++) w.sum();
  EXPECT_EQ(w.c.total(Counter::agg_diverted), 0u);
  for (Member r = 0; r < w.c.size(); r++) {
    EXPECT_TRUE(w.set(r).stations[0].out);
    EXPECT_FALSE(w.set(r).stations[1].out);
  }
}

}  // namespace
}  // namespace mcast::test
