// Trees of stations: leaves fold racks, and stations at the top fold the racks' sums. The bits are
// those of a fold by the ranks alone in these racks, whatever happens to stations.
#include "aggregation/station_cluster.h"
#include "support/seeds.h"
#include "wire/aggregation.h"

namespace mcast::test {
namespace {

using wire::Kind;

constexpr size_t kTreeVector = 3 << 19;

// Two racks of three ranks, and one rank without a rack.
ClusterOptions in_racks() {
  ClusterOptions o = with_stations(7);
  o.racks = {"A", "B", "A", "", "B", "A", "B"};
  return o;
}

Runs all_call(StationCluster& c, Kind kind, Element element, uint64_t id,
              Reduction reduction = Reduction::kSum) {
  const size_t bytes = kind == Kind::kReduceScatter ? kTreeVector / 4 : kTreeVector;
  wire::Descriptor d{kind, static_cast<uint8_t>(element), kNoMember, bytes, ""};
  d.reduction = static_cast<uint8_t>(reduction);
  Runs runs;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.call(r, d, id));
  return runs;
}

// The tree: two leaves for A, one for B, two stations at the top.
void add_tree(StationCluster& c) {
  c.add_stations({65536, 32768, 65536, 65536, 65536}, 1, 0, {"A", "A", "B", "top", ""});
}

// Bytes of contributions and sums that a station has received.
uint64_t received(StationCluster& c, size_t j) {
  return c.station(j).counters().get(Counter::reduce_bytes_received);
}

TEST(StationTree, FoldsEveryTypeInBothOrders) {
  for (const FoldOrder fold : {FoldOrder::kRank, FoldOrder::kTurn}) {
    ClusterOptions o = in_racks();
    o.group.agreed.fold = fold;
    StationCluster c(o);
    add_tree(c);
    uint64_t id = 0;
    for (const Element element :
         {Element::kFloat32, Element::kBFloat16, Element::kInt32, Element::kFloat64}) {
      for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter}) {
        finish(c, all_call(c, kind, element, ++id));
      }
    }
    finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, ++id, Reduction::kPremulSum));
    finish(c, all_call(c, Kind::kAllreduce, Element::kFloat16, ++id, Reduction::kAvg));
    EXPECT_GT(c.total(Counter::agg_results), 0u);
    EXPECT_EQ(c.total(Counter::agg_diverted), 0u);
    for (size_t j = 0; j < c.stations(); j++) {
      EXPECT_GT(received(c, j), 0u) << j;
      EXPECT_FALSE(c.station(j).station().closed());
    }
  }
}

TEST(StationTree, SendsOneSumPerRackToTheTop) {
  StationCluster c(in_racks());
  c.add_stations({65536, 65536, 65536}, 1, 0, {"A", "B", "top"});
  finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, 1));
  // Each leaf gets three contributions; the top gets two sums, and the contribution of the rank
  // without a rack.
  EXPECT_EQ(received(c, 0), received(c, 2));
  EXPECT_EQ(received(c, 1), received(c, 2));
  EXPECT_EQ(c.station(0).counters().get(Counter::reduce_bytes_sent) * 3, received(c, 0));
}

TEST(StationTree, WithoutLeavesOrTopsStationsFoldAllInTheSameBrackets) {
  for (const std::vector<std::string>& racks :
       std::vector<std::vector<std::string>>{{"top", ""}, {"A", "B"}}) {
    StationCluster c(in_racks());
    c.add_stations({65536, 65536}, 1, 0, racks);
    finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, 1));
    EXPECT_GT(c.total(Counter::agg_results), 0u);
  }
}

TEST(StationTree, RanksFoldInBracketsWithoutStations) {
  for (const FoldOrder fold : {FoldOrder::kRank, FoldOrder::kTurn}) {
    ClusterOptions o = in_racks();
    o.group.agreed.fold = fold;
    StationCluster c(o);
    finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, 1));
    finish(c, all_call(c, Kind::kReduceScatter, Element::kBFloat16, 2));
    Runs small;
    wire::Descriptor d{Kind::kAllreduce, static_cast<uint8_t>(Element::kFloat32), kNoMember, 2000,
                       ""};
    d.reduction = static_cast<uint8_t>(Reduction::kSum);
    for (Member r = 0; r < c.size(); r++) small.push_back(c.call(r, d, 3));
    finish(c, small);
  }
}

// Results arrive: some have been placed, others have not.
bool tree_under_way(const StationCluster& c) { return c.total(Counter::agg_results) > 2; }

// The event in the middle costs only time, and later operations continue.
template <typename Happens>
void survives(Happens happens) {
  StationCluster c(in_racks());
  add_tree(c);
  Runs runs = all_call(c, Kind::kAllreduce, Element::kFloat32, 1);
  ASSERT_TRUE(c.run([&] { return tree_under_way(c); }));
  happens(c);
  finish(c, runs, 10 * kSecond);
  finish(c, all_call(c, Kind::kAllreduce, Element::kBFloat16, 2), 10 * kSecond);
  for (Member r = 0; r < c.size(); r++) EXPECT_FALSE(c.group(r).core().failed());
  EXPECT_GT(c.total(Counter::agg_diverted), 0u);
  // No living station keeps any state of an operation.
  c.run_for(kSecond);
  for (size_t j = 0; j < c.stations(); j++) {
    aggregation::Job* const job = c.station(j).station().job();
    if (c.stopped(j) || job == nullptr) continue;
    EXPECT_EQ(job->operations(), 0u) << j;
    EXPECT_EQ(job->blocks(), 0u) << j;
  }
}

TEST(StationTree, OperationsSurviveAKilledLeaf) {
  survives([](StationCluster& c) { c.kill_station(0); });
}
TEST(StationTree, OperationsSurviveAKilledTop) {
  survives([](StationCluster& c) { c.kill_station(3); });
}
TEST(StationTree, OperationsSurviveAStoppedLeaf) {
  survives([](StationCluster& c) { c.stop_station(2, true); });
}
TEST(StationTree, OperationsSurviveALostConnectionOfLeafAndTop) {
  survives(
      [](StationCluster& c) { c.net().reset(c.station(2).endpoint(), c.station(4).endpoint()); });
}
TEST(StationTree, DecliningLeafIsNotLostAndResultsResume) {
  StationCluster c(in_racks());
  add_tree(c);
  c.station(1).declines = true;
  for (uint64_t id = 1; id < 4; id++) {
    finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, id), 10 * kSecond);
  }
  EXPECT_EQ(c.total(Counter::agg_lost), 0u);
  EXPECT_GT(c.total(Counter::agg_declined), 0u);
  c.station(1).declines = false;
  const uint64_t before = c.total(Counter::agg_results);
  finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, 4));
  EXPECT_GT(c.total(Counter::agg_results), before);
}

// A station at the top closes if it gets a frame that a leaf may not send: here the first sum,
// changed in transit.
template <typename Change>
void sum_is_refused(const std::string& reason, Change change) {
  SCOPED_TRACE(reason);
  StationCluster c(in_racks());
  add_tree(c);
  std::optional<size_t> top;
  c.net().set_frame_hook([&](size_t from, size_t to, Channel channel, ConstBytes frame) {
    wire::FrameHeader header;
    wire::AggResult sum;
    if (top || to < c.size() || !wire::parse_frame(frame, header) ||
        header.type != wire::FrameType::kAggResult ||
        !wire::parse_agg_result(frame.subspan(wire::kFrameHeader), sum)) {
      return true;
    }
    change(sum);
    wire::Writer head;
    wire::put_agg_result_head(head, sum.number, sum.form, sum.contributors);
    const ConstBytes parts[] = {head.bytes(), sum.payload};
    std::vector<std::byte> changed(wire::kFrameHeader);
    wire::write_frame_header(changed.data(), header, parts);
    for (const ConstBytes part : parts) changed.insert(changed.end(), part.begin(), part.end());
    c.net().inject_frame(from, to, channel, changed);
    top = to - c.size();
    return false;
  });
  finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, 1), 10 * kSecond);
  ASSERT_TRUE(top);
  EXPECT_EQ(c.station(*top).station().closed().value_or("open"),
            "another station broke the protocol of operation 0: " + reason);
  EXPECT_EQ(c.station(*top).counters().get(Counter::agg_malformed), 1u);
}

TEST(StationTree, TheTopTakesNoSumThatCannotBe) {
  using wire::AggResult;
  sum_is_refused("a sum of other contributions", [](AggResult& sum) { sum.contributors++; });
  sum_is_refused("a sum of other contributions",
                 [](AggResult& sum) { sum.form = wire::ResultForm::kFinal; });
  sum_is_refused("a sum that was not asked for", [](AggResult& sum) { sum.number += 1000; });
  sum_is_refused("a sum out of order", [](AggResult& sum) { sum.number++; });
  sum_is_refused("a sum of another length", [](AggResult& sum) {
    sum.payload = sum.payload.first(sum.payload.size() - sizeof(float));
  });
}

// After a loss, the next set is another tree.
TEST(StationTree, NextSetAfterALossFoldsAsAnotherTree) {
  StationCluster c(in_racks());
  add_tree(c);
  finish(c, all_call(c, Kind::kAllreduce, Element::kFloat32, 1));
  c.kill_station(0);
  ASSERT_TRUE(c.run([&] { return c.total(Counter::agg_lost) == c.size(); }, 10 * kSecond));
  c.add_stations({65536, 65536}, 2, c.group(0).core().next_sequence(), {"B", "top"});
  const uint64_t before = c.total(Counter::agg_results);
  finish(c, all_call(c, Kind::kReduceScatter, Element::kFloat32, 2), 10 * kSecond);
  EXPECT_GT(c.total(Counter::agg_results), before);
}

}  // namespace
}  // namespace mcast::test
