// The table of station sets: which set is in force, losses before and after the cut-over,
// forgetting. Also the segments that are dealt to the stations of a set; stations compute the same.
#include "aggregation/plan/station_table.h"

#include <gtest/gtest.h>

#include "aggregation/fold/station_list.h"

namespace mcast {
namespace {

StationSet set_of(uint32_t version, Sequence from, std::initializer_list<Member> members) {
  StationSet set{version, from, false, {}};
  for (const Member m : members) set.stations.push_back({m, 65536, 100u + m, "", false});
  return set;
}

TEST(StationTable, TheLatestSetThatBeganIsInForce) {
  StationTable t;
  EXPECT_EQ(t.of(0), nullptr);
  ASSERT_TRUE(t.install(set_of(1, 5, {8, 9})));
  EXPECT_EQ(t.of(4), nullptr);
  EXPECT_EQ(t.of(5)->version, 1u);
  ASSERT_TRUE(t.install(set_of(3, 20, {9})));
  EXPECT_EQ(t.of(19)->version, 1u);
  EXPECT_EQ(t.of(20)->version, 3u);
  EXPECT_EQ(t.of(1u << 30)->version, 3u);
  // Two cut-overs at one operation: the later one counts.
  ASSERT_TRUE(t.install(set_of(4, 20, {10})));
  EXPECT_EQ(t.of(20)->version, 4u);
}

TEST(StationTable, OnlyNewerSetsAreInstalled) {
  StationTable t;
  ASSERT_TRUE(t.install(set_of(2, 10, {8})));
  EXPECT_FALSE(t.install(set_of(2, 11, {8})));
  EXPECT_FALSE(t.install(set_of(1, 11, {8})));
  EXPECT_FALSE(t.install(set_of(3, 9, {8})));
  EXPECT_EQ(t.latest()->version, 2u);
}

TEST(StationTable, AStationIsLostOnceAndForEver) {
  StationTable t;
  ASSERT_TRUE(t.install(set_of(1, 0, {8, 9})));
  const StationSet* const set = t.of(0);
  EXPECT_FALSE(set->find(8)->out);
  EXPECT_TRUE(t.lose(1, 8));
  EXPECT_TRUE(set->find(8)->out);
  EXPECT_FALSE(t.lose(1, 8));
  EXPECT_FALSE(t.lose(1, 10)) << "not of the set";
  EXPECT_FALSE(set->find(9)->out);
  EXPECT_EQ(set->find(10), nullptr);
}

TEST(StationTable, ALossOfOneSetIsNoneOfAnother) {
  StationTable t;
  ASSERT_TRUE(t.install(set_of(1, 0, {8, 9})));
  ASSERT_TRUE(t.install(set_of(2, 7, {8, 10})));
  EXPECT_EQ(t.versions_with(8), (std::vector<uint32_t>{1, 2}));
  EXPECT_TRUE(t.lose(1, 8));
  EXPECT_EQ(t.versions_with(8), (std::vector<uint32_t>{2}));
  EXPECT_FALSE(t.of(7)->find(8)->out);
}

TEST(StationTable, LossBeforeTheCutoverCounts) {
  StationTable t;
  EXPECT_TRUE(t.lose(2, 9));
  EXPECT_FALSE(t.lose(2, 9)) << "told once";
  EXPECT_TRUE(t.lose(1, 8));
  ASSERT_TRUE(t.install(set_of(1, 0, {8, 9})));
  EXPECT_TRUE(t.of(0)->find(8)->out);
  EXPECT_FALSE(t.of(0)->find(9)->out);
  ASSERT_TRUE(t.install(set_of(2, 3, {9, 10})));
  EXPECT_TRUE(t.of(3)->find(9)->out);
  EXPECT_FALSE(t.lose(2, 9));
  // The memory is bounded, however many there are.
  for (uint32_t v = 0; v < 5000; v++) t.lose(100 + v, 9);
}

TEST(StationTable, SetsThatNoOperationNeedsAreForgotten) {
  StationTable t;
  ASSERT_TRUE(t.install(set_of(1, 0, {8})));
  ASSERT_TRUE(t.install(set_of(2, 10, {9})));
  const StationSet* const second = t.of(10);
  t.released(9);
  EXPECT_EQ(t.of(9)->version, 1u);
  t.released(10);
  EXPECT_EQ(t.of(9), nullptr);
  EXPECT_EQ(t.of(10), second);
  EXPECT_FALSE(t.lose(1, 8)) << "of a forgotten set";
  t.released(1000);
  EXPECT_EQ(t.latest(), second) << "the last stays in force";
}

TEST(StationTable, ContactExistsFromMeetToPartAndGoesDownOnce) {
  StationTable t;
  EXPECT_EQ(t.contact(8), nullptr);
  t.heard(8, 5);
  EXPECT_FALSE(t.down(8, Status(Code::kPeerLost, "x"))) << "not met";
  t.meet(8);
  ASSERT_NE(t.contact(8), nullptr);
  EXPECT_FALSE(t.contact(8)->answered);
  t.heard(8, 7);
  t.meet(8);
  EXPECT_TRUE(t.contact(8)->answered);
  EXPECT_EQ(t.contact(8)->heard, 7);
  EXPECT_TRUE(t.down(8, Status(Code::kPeerLost, "reset")));
  EXPECT_FALSE(t.down(8, Status(Code::kPeerLost, "again")));
  EXPECT_EQ(t.contact(8)->down.message(), "reset");
  t.part(8);
  EXPECT_EQ(t.contact(8), nullptr);
}

wire::Descriptor sum_of(wire::Kind kind, Element element, uint64_t bytes) {
  wire::Descriptor d{kind, static_cast<uint8_t>(element), kNoMember, bytes, ""};
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  return d;
}

Agreed four_ranks(FoldOrder fold) {
  Agreed agreed;
  agreed.members = 4;
  agreed.incast = 64 << 10;
  agreed.fold = fold;
  return agreed;
}

TEST(StationDeals, EverySegmentHasOneExecutorThatKnowsIt) {
  const StationSet set = set_of(1, 0, {4, 5, 6});
  const Agreed agreed = four_ranks(FoldOrder::kRank);
  for (const auto kind : {wire::Kind::kAllreduce, wire::Kind::kReduceScatter}) {
    // The last block is shorter.
    const wire::Descriptor d = sum_of(kind, Element::kFloat32, 3'000'004);
    const StationDeal deal = deal_out(d, agreed, 77, set.stations);
    ASSERT_TRUE(deal.deal) << placement_text(deal.placement.reason);
    uint64_t bytes = 0, dealt = 0;
    for (Member m = 0; m < 4; m++) {
      for (uint32_t i = 0; i < deal.deal->segments(m); i++) bytes += deal.length(m, i);
      EXPECT_EQ(deal.length(m, deal.deal->segments(m)), 0u);
    }
    EXPECT_EQ(bytes, kind == wire::Kind::kAllreduce ? 3'000'004u : 4 * 3'000'004u);
    for (uint16_t j = 0; j < 3; j++) {
      const auto list = make_station_list(d, agreed, 77, set.stations, j, 2 << 20);
      ASSERT_TRUE(list.ok());
      ASSERT_EQ(list.value()->size(), deal.deal->length(j));
      for (uint32_t q = 0; q < list.value()->size(); q++, dealt++) {
        const aggregation::ListEntry entry = list.value()->at(q);
        ASSERT_EQ(deal.deal->executor(entry.owner, entry.segment), j);
        ASSERT_EQ(entry.bytes, deal.length(entry.owner, entry.segment));
        ASSERT_FALSE(entry.own_kept);
      }
    }
    EXPECT_GT(dealt, 0u);
  }
}

TEST(StationDeals, TheOwnContributionIsKeptWhereItIsLastOrTheOrderDoesNotShow) {
  const StationSet set = set_of(1, 0, {4, 5});
  const auto kept = [&](Element element, FoldOrder fold) {
    return deal_out(sum_of(wire::Kind::kAllreduce, element, 4 << 20), four_ranks(fold), 1,
                    set.stations)
        .kept;
  };
  EXPECT_FALSE(kept(Element::kFloat32, FoldOrder::kRank));
  EXPECT_TRUE(kept(Element::kInt32, FoldOrder::kRank));
  EXPECT_TRUE(kept(Element::kFloat32, FoldOrder::kTurn));
}

TEST(StationDeals, Float8IsFoldedByRanksAlone) {
  const StationSet set = set_of(1, 0, {4, 5});
  const auto dealt = [&](Element element) {
    const auto d = sum_of(wire::Kind::kAllreduce, element, 4 << 20);
    return deal_out(d, four_ranks(FoldOrder::kRank), 1, set.stations).deal != nullptr;
  };
  EXPECT_TRUE(dealt(Element::kBFloat16));
  EXPECT_FALSE(dealt(Element::kFloat8E4M3));
}

TEST(StationDeals, AStationThatIsOutStillHasItsPart) {
  StationSet set = set_of(1, 0, {4, 5});
  const auto d = sum_of(wire::Kind::kAllreduce, Element::kFloat32, 4 << 20);
  const auto before = deal_out(d, four_ranks(FoldOrder::kRank), 1, set.stations);
  set.stations[0].out = true;
  const auto after = deal_out(d, four_ranks(FoldOrder::kRank), 1, set.stations);
  EXPECT_GT(after.deal->length(0), 0u);
  EXPECT_EQ(before.deal->length(0), after.deal->length(0));
}

TEST(StationDeals, WhyNothingIsDealt) {
  const StationSet set = set_of(1, 0, {4, 5});
  const auto reason = [&](const wire::Descriptor& d, Agreed agreed) {
    const StationDeal deal = deal_out(d, agreed, 1, set.stations);
    EXPECT_FALSE(deal.deal);
    EXPECT_FALSE(make_station_list(d, agreed, 1, set.stations, 0, 2 << 20).ok());
    return deal.placement.reason;
  };
  const auto large = sum_of(wire::Kind::kAllreduce, Element::kFloat32, 4 << 20);
  Agreed agreed = four_ranks(FoldOrder::kRank);
  EXPECT_EQ(reason(sum_of(wire::Kind::kAllreduce, Element::kFloat32, 1 << 19), agreed),
            PlacementReason::kSmall);
  EXPECT_EQ(reason(sum_of(wire::Kind::kReduce, Element::kFloat32, 4 << 20), agreed),
            PlacementReason::kNoStations);
  EXPECT_EQ(reason(sum_of(wire::Kind::kAllreduce, Element::kFloat32, 0), agreed),
            PlacementReason::kNoStations);
  EXPECT_EQ(deal_out(large, agreed, 1, {}).placement.reason, PlacementReason::kNoStations);
  agreed.contributors = 2;
  EXPECT_EQ(reason(large, agreed), PlacementReason::kFewContributors);
  agreed.contributors = 0;
  agreed.aggregate = AggregateMode::kOff;
  EXPECT_EQ(reason(large, agreed), PlacementReason::kOff);
}

}  // namespace
}  // namespace mcast
