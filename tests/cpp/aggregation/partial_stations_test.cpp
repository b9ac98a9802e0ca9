// Reductions that do not wait for late ranks, partly folded by stations: each operation has one
// mask, and the same result on all ranks, also on those whose inputs it lacks.
#include <gmock/gmock.h>

#include "aggregation/station_cluster.h"
#include "collective/partial_world.h"
#include "support/errors.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using testing::ElementsAre;
using wire::Kind;

void expect_partial(const ClusterOptions& o, const PartialCall& call, size_t stations,
                    const std::vector<Member>& late) {
  StationCluster c(o);
  c.add_stations(std::vector<uint32_t>(stations, 65536));
  PartialWorld w(c);
  expect_partial(w, call, late);
}

TEST(PartialStations, EndWithoutALateRank) {
  for (const auto& [options, call, name] : partial_cases()) {
    SCOPED_TRACE(name);
    expect_partial(options, call, 2, {2});
  }
}

TEST(PartialStations, WithoutSeveralRanksMemberZeroAmongThem) {
  for (const std::vector<Member>& late :
       {std::vector<Member>{0}, {0, 4}, {1, 2, 3}, {3, 4}, {0, 1, 2, 3}, {1, 2, 3, 4}}) {
    for (const Element element : {Element::kInt32, Element::kFloat32}) {
      for (const size_t stations : {1u, 3u}) {
        SCOPED_TRACE(testing::PrintToString(late) + ", " + std::to_string(stations) + " stations");
        ClusterOptions o = partial_options(5);
        o.group.arity = 2;
        o.group.agreed.fold = stations == 1 ? FoldOrder::kTurn : FoldOrder::kRank;
        expect_partial(o, {Kind::kAllreduce, element}, stations, late);
      }
    }
  }
}

TEST(PartialStations, SumWiderElementsOverBothPaths) {
  for (const bool ring : {false, true}) {
    ClusterOptions o = partial_options(4);
    o.group.multicast.wanted = !ring;
    expect_partial(o, {Kind::kAllreduce, Element::kInt64, Reduction::kSum, 3 << 19}, 2, {1, 2});
  }
}

TEST(PartialStations, StandInsSendTheDigestsOfTheirBlocks) {
  for (const ClusterOptions& o : partial_options_with_digests()) {
    expect_partial(o, {Kind::kAllreduce, Element::kFloat32}, 2, {1});
  }
}

// The call happens at every moment around the inquiry. The rank contributes to all of the operation
// or to none of it, and all ranks get the same mask.
TEST(PartialStations, PostCrossesItsExclusion) {
  size_t with = 0, without = 0;
  for (Nanos early = 0; early < 600 * kMicro; early += 20 * kMicro) {
    SCOPED_TRACE(early);
    const Member late = early % (40 * kMicro) == 0 ? 0 : 2;
    ClusterOptions o = partial_options(4);
    o.group.agreed.fold = early % (60 * kMicro) == 0 ? FoldOrder::kTurn : FoldOrder::kRank;
    StationCluster c(o);
    PartialWorld w(c);
    c.add_stations({65536, 65536});
    const auto d = PartialCall{}.of(4);
    Runs runs = call_all_but(w, d, 1, {late});
    w.c.run_for(kPartialLimit - 200 * kMicro + early);
    runs.push_back(w.c.call(late, d, 1));
    finish(w.c, runs);
    EXPECT_EQ(w.check_counts(), "");
    (w.missing(0).empty() ? with : without)++;
    EXPECT_EQ(w.c.total(Counter::agg_malformed), 0u);
    EXPECT_EQ(w.c.total(Counter::malformed), 0u);
  }
  EXPECT_GT(with, 3u);
  EXPECT_GT(without, 3u);
}

TEST(PartialStations, ARankThatIsFarBehindTakesAllResults) {
  StationCluster c(partial_options(4));
  PartialWorld w(c);
  c.add_stations({65536});
  Runs runs;
  const PartialCall calls[] = {{}, {Kind::kReduceScatter}, {Kind::kAllreduce, Element::kInt32}};
  for (uint64_t id = 1; id <= 3; id++) {
    for (const auto& run : call_all_but(w, calls[id - 1].of(4), id, {1})) runs.push_back(run);
  }
  w.c.run_for(10 * kMilli);
  EXPECT_FALSE(runs[0]->done());
  ASSERT_TRUE(w.c.run([&] { return all_done(runs); }, kSecond));
  EXPECT_GT(w.c.now(), 3 * kPartialLimit) << "each has its own time";
  const AggregationReport report = w.c.group(1).core().aggregation_report(w.c.clock(1));
  EXPECT_EQ(report.partial.operations, 3u);
  EXPECT_EQ(report.partial.excused, 3u);
  EXPECT_EQ(report.partial.last->sequence, 2u);
  EXPECT_THAT(report.partial.last->ranks, ElementsAre(1));
  EXPECT_EQ(report.partial.last->contributors, 3u);
  for (uint64_t id = 1; id <= 3; id++) runs.push_back(w.c.call(1, calls[id - 1].of(4), id));
  finish(w.c, runs);
  EXPECT_EQ(w.check_counts(), "");
  EXPECT_EQ(w.c.group(0).core().aggregation_report(w.c.clock(0)).partial.excused, 0u);
}

// A rank that does not reply is not a late rank.
TEST(PartialStations, AStoppedRankIsMissedAsOne) {
  ClusterOptions o = partial_options(4);
  o.group.liveness_limit = 2 * kSecond;
  StationCluster c(o);
  PartialWorld w(c);
  c.add_stations({65536});
  w.c.pause(3, true);
  const Runs runs = call_all_but(w, PartialCall{}.of(4), 1, {3});
  ASSERT_TRUE(w.c.run([&] { return all_done(runs); }, 10 * kSecond));
  for (const auto& run : runs) {
    EXPECT_TRUE(is_error(run->status, ErrorId::rank_silent,
                         {{"rank", "3"}, {"limit", seconds_text(o.group.liveness_limit)}}));
  }
}

class PartialRunner {
 public:
  explicit PartialRunner(uint64_t seed)
      : rng_(seed ^ 0x7061727469616cULL), cluster_(options(seed)), world_(cluster_) {}

  // Returns "" or the error. `partial` and `whole` count the operations that have ended in each
  // way.
  std::string run(uint64_t& partial, uint64_t& whole) {
    StationCluster& c = cluster_;
    const size_t stations = rng_.below(4);
    if (stations > 0) c.add_stations(std::vector<uint32_t>(stations, 65536));
    post();
    for (uint64_t n = stations == 0 ? 0 : rng_.below(3); n > 0; n--) trouble(rng_.below(stations));
    const bool ended = c.run(
        [&] {
          for (Member r = 0; r < c.size(); r++) {
            if (!c.group(r).core().quiet()) return false;
          }
          return all_done(runs_);
        },
        100 * kSecond);
    for (const auto& run : runs_) {
      const std::string where =
          "op " + std::to_string(run->id) + " at rank " + std::to_string(run->rank) + ": ";
      if (run->calls != 1) return where + "completed " + std::to_string(run->calls) + " times";
      if (!run->status.ok()) return where + run->status.to_string();
      if (const std::string wrong = run->check(c.size()); !wrong.empty()) return where + wrong;
      (run->folding.absent.empty() ? whole : partial)++;
    }
    if (!ended) return "not released";
    if (c.total(Counter::malformed) > 0) return "malformed frames";
    if (c.spins() > 3) return "a lane span past its deadline";
    return world_.check_counts();
  }

 private:
  ClusterOptions options(uint64_t seed) {
    ClusterOptions o = partial_options(static_cast<uint32_t>(3 + rng_.below(5)));
    o.net.seed = seed;
    o.net.stream_latency = rng_.chance(0.5) ? 50 * kMicro : 2 * kMilli;
    o.net.jitter = rng_.chance(0.5) ? 0 : 100 * kMicro;
    o.group.arity = rng_.chance(0.5) ? 2 : 32;
    o.group.agreed.fold = rng_.chance(0.5) ? FoldOrder::kRank : FoldOrder::kTurn;
    o.group.multicast.wanted = rng_.chance(0.8);
    o.group.aggregator_patience = rng_.chance(0.5) ? kSecond : 20 * kMilli;
    o.group.partial = rng_.chance(0.5) ? 20 * kMilli : 100 * kMilli;
    o.sleepy = rng_.chance(0.3);
    return o;
  }

  void post() {
    StationCluster& c = cluster_;
    std::vector<Nanos> at(c.size());
    const uint64_t count = 1 + rng_.below(4);
    runs_.resize(count * c.size(), std::make_shared<OpRun>());
    for (uint64_t id = 1; id <= count; id++) {
      PartialCall call;
      do {
        call.element = static_cast<Element>(1 + rng_.below(10));
        call.reduction = static_cast<Reduction>(1 + rng_.below(9));
      } while (!reducible(call.element, call.reduction));
      if (rng_.chance(0.4)) call.kind = Kind::kReduceScatter;
      call.bytes =
          rng_.chance(0.3) ? 8 * (64 + rng_.below(40'000)) : 8 * (150'000 + rng_.below(9000));
      const wire::Descriptor d = call.of(c.size());
      if (d.bytes == 0) continue;
      for (Member r = 0; r < c.size(); r++) {
        at[r] += static_cast<Nanos>(rng_.below(5 * kMilli));
        if (rng_.chance(0.25)) at[r] += static_cast<Nanos>(rng_.below(300 * kMilli));
        c.at(c.now() + at[r],
             [this, d, r, id] { runs_[(id - 1) * world_.c.size() + r] = world_.c.call(r, d, id); });
      }
    }
  }

  void trouble(size_t station) {
    StationCluster& c = cluster_;
    const Nanos when = c.now() + static_cast<Nanos>(rng_.below(150 * kMilli));
    const auto rank = static_cast<Member>(rng_.below(c.size()));
    const size_t end = c.station(station).endpoint();
    switch (rng_.below(4)) {
      case 0:
        c.at(when, [&c, station] { c.kill_station(station); });
        break;
      case 1:
        c.at(when, [&c, rank, end] { c.net().reset(rank, end); });
        break;
      case 2:
        c.at(when, [&c, station] { c.station(station).declines = true; });
        break;
      default:
        c.station(station).last = rng_.below(200);
    }
  }

  Rng rng_;
  StationCluster cluster_;
  PartialWorld world_;
  Runs runs_;
};

class PartialSchedules : public testing::TestWithParam<int> {};

TEST_P(PartialSchedules, GiveAllRanksOneResult) {
  uint64_t partial = 0, whole = 0;
  const Seeds all = seeds(60, static_cast<uint64_t>(GetParam()));
  for_seeds(all, [&](uint64_t seed) { return PartialRunner(seed).run(partial, whole); });
  if (all.size() < 60) return;  // fewer seeds may miss some
  EXPECT_GT(partial, 50u);
  EXPECT_GT(whole, 50u);
}
INSTANTIATE_TEST_SUITE_P(Shard, PartialSchedules, testing::Range(0, 2));

}  // namespace
}  // namespace mcast::test
