// The table of station sets: which is in force, losses before and after the line, forgetting.
#include "collective/station_table.h"

#include <gtest/gtest.h>

namespace mcast {
namespace {

StationSet set_of(uint32_t version, Sequence from, std::initializer_list<Member> members) {
  StationSet set{version, from, {}};
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
  // Two lines at one operation: the later counts.
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

TEST(StationTable, ALossMayComeBeforeTheLine) {
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
  // However many: bounded.
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

TEST(StationTable, Contacts) {
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

}  // namespace
}  // namespace mcast
