// The stations' deal equals the ranks' deal: every segment that the ranks deal to a station is on
// that station's list, and all lists together are the segments that the ranks do not fold
// themselves.
#include "aggregation/server/deal_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregation/fold/job_params.h"
#include "aggregation/plan/station_deal.h"
#include "aggregation/service_world.h"
#include "wire/station_hash.h"

namespace mcast::service {
namespace {

constexpr size_t kRoom = aggregation::kMostLists;

wire::StationRoster roster_of(uint32_t stations) {
  wire::StationRoster roster;
  roster.version = 1;
  for (uint32_t i = 0; i < stations; i++) {
    roster.stations.push_back({.process = 1,
                               .uid = 50 + i,
                               .capacity = 65536 / (1 + i % 2),
                               .port = 1,
                               .host = "10.0.0." + std::to_string(i / 2),
                               .rack = ""});
  }
  return roster;
}

TEST(DealWork, StationsHaveTheListsThatRanksDealThem) {
  for (const wire::Kind kind : {wire::Kind::kAllreduce, wire::Kind::kReduceScatter}) {
    const wire::Ask ask = test::some_ask(8);
    const wire::StationRoster roster = roster_of(3);
    wire::Descriptor d;
    d.kind = kind;
    d.element = static_cast<uint8_t>(Element::kFloat32);
    d.reduction = static_cast<uint8_t>(Reduction::kSum);
    d.bytes = kind == wire::Kind::kAllreduce ? 16u << 20 : 2u << 20;

    std::vector<Station> stations(roster.stations.size());
    const std::vector<Member> members = {8, 9, 10};
    const auto hashes = wire::station_hashes(roster);
    for (size_t i = 0; i < stations.size(); i++) {
      stations[i].capacity = roster.stations[i].capacity;
      stations[i].hash = hashes[i];
    }
    const StationDeal ranks = deal_out(d, agreed_of(ask), ask.tag, stations);
    ASSERT_TRUE(ranks.deal);
    for (uint16_t i = 0; i < stations.size(); i++) {
      const auto list = deal_work()(ask, roster, members, i, d, kRoom);
      ASSERT_TRUE(list.ok()) << list.status().to_string();
      ASSERT_EQ((*list)->size(), ranks.deal->length(i));
      EXPECT_GT((*list)->size(), 0u);
      for (uint32_t number = 0; number < (*list)->size(); number++) {
        const aggregation::ListEntry entry = (*list)->at(number);
        EXPECT_EQ(ranks.deal->executor(entry.owner, entry.segment), i);
        EXPECT_EQ(entry.bytes, ranks.length(entry.owner, entry.segment));
      }
    }
  }
}

// Leaves and stations at the top: the segments and numbers that a leaf sends are those for which
// the top waits.
TEST(DealWork, StationsOfATreeHaveListsThatMeet) {
  wire::Ask ask = test::some_ask(8);
  ask.racks = {"A", "B"};
  ask.rack_of = {1, 1, 2, 2, 1, 2, 0, 0};
  wire::StationRoster roster = roster_of(5);
  const char* racks[] = {"A", "top", "A", "B", ""};
  for (size_t i = 0; i < 5; i++) roster.stations[i].rack = racks[i];
  const std::vector<Member> members = {12, 8, 9, 10, 11};
  wire::Descriptor d;
  d.kind = wire::Kind::kAllreduce;
  d.element = static_cast<uint8_t>(Element::kBFloat16);
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  d.bytes = 16u << 20;
  std::vector<std::unique_ptr<const aggregation::WorkList>> lists;
  for (uint16_t i = 0; i < 5; i++) {
    auto list = deal_work()(ask, roster, members, i, d, kRoom);
    ASSERT_TRUE(list.ok()) << list.status().to_string();
    lists.push_back(std::move(list).value());
  }
  EXPECT_FALSE(lists[1]->rack() || lists[4]->rack());
  size_t sums = 0;
  for (const size_t leaf : {0u, 2u, 3u}) {
    ASSERT_EQ(lists[leaf]->rack(), leaf == 3 ? 1u : 0u);
    ASSERT_EQ(lists[leaf]->partners().size(), 2u);
    EXPECT_GT(lists[leaf]->size(), 0u);
    sums += lists[leaf]->size();
    for (uint32_t number = 0; number < lists[leaf]->size(); number++) {
      const auto [station, there] = lists[leaf]->parent(number);
      const size_t top = station == 8 ? 1 : 4;
      ASSERT_EQ(members[top], station);
      const aggregation::ListEntry ours = lists[leaf]->at(number), theirs = lists[top]->at(there);
      ASSERT_EQ(ours.owner, theirs.owner);
      ASSERT_EQ(ours.segment, theirs.segment);
      ASSERT_EQ(ours.bytes, theirs.bytes);
      ASSERT_LE(ours.bytes, 30u << 10) << "its sum fits a frame";
      ASSERT_EQ(lists[top]->leaf(*lists[leaf]->rack(), theirs), members[leaf]);
    }
  }
  EXPECT_EQ(sums, 2 * (lists[1]->size() + lists[4]->size()));
  EXPECT_EQ(lists[1]->partners().size(), 3u);
}

// A rank declares the length of an operation; a list is made only if there is room for it.
TEST(DealWork, ListBeyondTheRoomIsNotMade) {
  wire::Ask flat = test::some_ask(8), tree = test::some_ask(8);
  tree.racks = {"A", "B"};
  tree.rack_of = {1, 1, 2, 2, 1, 2, 0, 0};
  wire::StationRoster roster = roster_of(3), in_racks = roster;
  in_racks.stations[0].rack = "A";
  const std::vector<Member> members = {8, 9, 10};
  wire::Descriptor d;
  d.element = static_cast<uint8_t>(Element::kFloat32);
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  for (const bool racks : {false, true}) {
    for (d.kind = wire::Kind::kAllreduce;; d.kind = wire::Kind::kReduceScatter) {
      uint32_t made = 0, refused = 0;
      for (uint32_t bits = 24; bits <= 64; bits++) {
        d.bytes = bits == 64 ? UINT64_MAX : uint64_t{1} << bits;
        const auto list =
            deal_work()(racks ? tree : flat, racks ? in_racks : roster, members, 0, d, kRoom);
        if (list.ok()) {
          made++;
          EXPECT_EQ(refused, 0u) << d.bytes;
          const size_t entries = sizeof(aggregation::ListEntry) * (*list)->size();
          EXPECT_GE((*list)->memory(), racks ? entries : 2 * (*list)->size());
          EXPECT_LE((*list)->memory(), kRoom);
        } else {
          refused++;
          EXPECT_THAT(list.status().message(), ::testing::HasSubstr("has no room for"));
        }
      }
      // The shards of all ranks together have 2^32 bytes.
      EXPECT_GE(made, d.kind == wire::Kind::kAllreduce ? 9u : 6u) << "4 GiB are no matter";
      EXPECT_GE(refused, 24u);
      if (d.kind == wire::Kind::kReduceScatter) break;
    }
  }
}

TEST(DealWork, SmallOperationIsNotDealt) {
  wire::Descriptor d;
  d.kind = wire::Kind::kAllreduce;
  d.element = static_cast<uint8_t>(Element::kFloat32);
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  d.bytes = 4096;
  const auto list =
      deal_work()(test::some_ask(8), roster_of(3), std::vector<Member>{8, 9, 10}, 0, d, kRoom);
  ASSERT_FALSE(list.ok());
  EXPECT_THAT(list.status().message(), ::testing::HasSubstr("stations do not fold it"));
}

}  // namespace
}  // namespace mcast::service
