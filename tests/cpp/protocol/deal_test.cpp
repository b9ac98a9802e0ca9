// Deal: shares hold at every prefix, every segment is dealt once, and lists number the dealt
// segments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "protocol/deal.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr double kOne = DealShape::kWhole;

// Stations of any weights that fold all segments, a part or none.
DealShape any_shape(Rng& rng) {
  DealShape shape;
  shape.tag = rng.next();
  const uint64_t owners = 1 + rng.below(9), stations = rng.below(12);
  const auto segments = static_cast<uint32_t>(rng.below(300));
  for (uint64_t m = 0; m < owners; m++) shape.segments.push_back(segments);
  // As in a tensor, the last shards are shorter or empty.
  if (rng.chance(0.5)) shape.segments.back() = static_cast<uint32_t>(rng.below(segments + 1));
  if (owners > 1 && rng.chance(0.3)) {
    shape.segments[owners - 2] = static_cast<uint32_t>(rng.below(segments + 1));
    shape.segments.back() = 0;
  }
  double sum = 0;
  std::vector<double> parts;
  for (uint64_t j = 0; j < stations; j++) {
    parts.push_back(std::pow(rng.unit(), static_cast<double>(1 + rng.below(4))));
    sum += parts.back();
  }
  const double folded = rng.chance(0.3) ? 1 : rng.unit();
  for (const double part : parts) {
    shape.stations.push_back({rng.next(), static_cast<uint32_t>(kOne * folded * part / sum)});
  }
  return shape;
}

void expect_shares(const DealShape& shape, const Deal& deal) {
  const double all = [&] {
    double sum = 0;
    for (const auto& s : shape.stations) sum += s.weight;
    return sum;
  }();
  std::vector<uint64_t> before(shape.stations.size());
  for (uint32_t m = 0; m < deal.owners(); m++) {
    const auto owner = static_cast<Member>(m);
    const auto order = Deal::takers(Deal::ranking(shape.tag, owner, shape.stations),
                                    deal.segments(owner), shape.stations, before);
    ASSERT_LE(order.size(), deal.segments(owner) / 4);
    double used = 0;
    for (const uint16_t j : order) used += shape.stations[j].weight;
    std::map<uint16_t, double> weight, given;
    weight[Deal::kOwner] = kOne;
    for (const uint16_t j : order) {
      weight[j] = used > 0 ? std::floor(shape.stations[j].weight * all / used) : 0;
      weight[Deal::kOwner] -= weight[j];
    }
    for (uint32_t i = 0; i < deal.segments(owner); i++) {
      const uint16_t who = deal.executor(owner, i);
      ASSERT_TRUE(weight.count(who)) << "station " << who << " is not of the first";
      given[who]++;
      if (who != Deal::kOwner) before[who]++;
      for (const auto& [e, w] : weight) {
        ASSERT_LT(std::abs(w * (i + 1) / kOne - given[e]), 1) << "after segment " << i;
      }
    }
  }
}

TEST(Deal, SharesHoldAtEveryPrefixOfEveryShard) {
  for (const uint64_t seed : seeds(150)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const DealShape shape = any_shape(rng);
    expect_shares(shape, Deal(shape));
    if (HasFatalFailure()) return;
  }
}

TEST(Deal, ListsNumberEverySegmentOnce) {
  for (const uint64_t seed : seeds(100)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const DealShape shape = any_shape(rng);
    const Deal deal(shape);
    std::set<std::pair<uint32_t, Member>> listed;
    for (uint16_t j = 0; j < shape.stations.size(); j++) {
      uint64_t before = 0;
      for (uint32_t q = 0; q < deal.length(j); q++) {
        const Deal::Entry e = deal.entry(j, q);
        ASSERT_EQ(deal.executor(e.owner, e.segment), j);
        ASSERT_LT(e.segment, deal.segments(e.owner));
        ASSERT_EQ(deal.number_of(e), q);
        // Sorted by segment, then by m - i mod P.
        const uint32_t place =
            (e.owner + deal.owners() - e.segment % deal.owners()) % deal.owners();
        const uint64_t key = uint64_t{e.segment} << 16 | place;
        ASSERT_TRUE(q == 0 || key > before);
        before = key;
        ASSERT_TRUE(listed.emplace(e.segment, e.owner).second);
      }
    }
    size_t own = 0, all = 0;
    for (uint32_t m = 0; m < deal.owners(); m++) {
      const auto owner = static_cast<Member>(m);
      all += deal.segments(owner);
      for (uint32_t i = 0; i < deal.segments(owner); i++) {
        if (deal.executor(owner, i) != Deal::kOwner) continue;
        own++;
        ASSERT_EQ(deal.number_of({owner, i}), std::nullopt);
      }
    }
    EXPECT_EQ(listed.size() + own, all);
    EXPECT_EQ(deal.number_of({static_cast<Member>(deal.owners()), 0}), std::nullopt);
    EXPECT_EQ(deal.number_of({0, deal.segments(0)}), std::nullopt);
  }
}

TEST(Deal, TheOrderStaysWhenAStationGoes) {
  for (const uint64_t seed : seeds(100)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    std::vector<DealShape::Station> stations(2 + rng.below(10));
    for (auto& s : stations) s.id = rng.next();
    const uint64_t tag = rng.next();
    const auto ids = [&](Member owner) {
      std::vector<uint64_t> order;
      for (const uint16_t j : Deal::ranking(tag, owner, stations)) order.push_back(stations[j].id);
      return order;
    };
    std::vector<std::vector<uint64_t>> before;
    for (Member m = 0; m < 8; m++) before.push_back(ids(m));
    const auto gone = stations.begin() + static_cast<ptrdiff_t>(rng.below(stations.size()));
    for (auto& order : before) std::erase(order, gone->id);
    stations.erase(gone);
    for (Member m = 0; m < 8; m++) EXPECT_EQ(ids(m), before[m]);
  }
}

TEST(Deal, WithoutStationsOwnersFoldAll) {
  const Deal deal({1, {3, 3, 2}, {}});
  for (const Member m : {0, 1, 2}) {
    for (uint32_t i = 0; i < deal.segments(m); i++) EXPECT_EQ(deal.executor(m, i), Deal::kOwner);
  }
  EXPECT_EQ(deal.number_of({0, 0}), std::nullopt);
  // Nor does it deal segments of shards that are too short for one.
  const Deal small({1, {3, 3, 3}, {{7, DealShape::kWhole}}});
  EXPECT_EQ(small.length(0), 0u);
  EXPECT_EQ(small.executor(2, 2), Deal::kOwner);
}

// Equal stations that fold everything: each has a seventh of every shard.
TEST(Deal, EqualStationsTakeTurns) {
  DealShape shape{99, {}, {}};
  for (int m = 0; m < 8; m++) shape.segments.push_back(140);
  for (uint64_t j = 0; j < 7; j++) shape.stations.push_back({j, DealShape::kWhole / 7});
  const Deal deal(shape);
  for (uint16_t j = 0; j < 7; j++) {
    EXPECT_NEAR(deal.length(j), 160, 8);
    EXPECT_LT(deal.entry(j, 0).segment, 7u);
  }
}

// Each shard is long enough for only some stations: it goes to those with the least, so that even
// with few shards no station has more than its share by more than one shard.
TEST(Deal, ShortShardsAreSpreadEvenlyOverAllStations) {
  for (const uint32_t each : {1u, 3u}) {
    for (const uint32_t owners : {8u, 16u, 256u}) {
      const uint32_t segments = each * Deal::kLeastOfAStation;
      DealShape shape{99, std::vector<uint32_t>(owners, segments), {}};
      for (uint64_t j = 0; j < 8; j++) shape.stations.push_back({j, DealShape::kWhole / 8});
      const Deal deal(shape);
      for (uint16_t j = 0; j < 8; j++) {
        EXPECT_NEAR(deal.length(j), owners * segments / 8.0, Deal::kLeastOfAStation) << j;
      }
    }
  }
}

TEST(Deal, ShortShardsAreSpreadByWeight) {
  DealShape shape{99, std::vector<uint32_t>(64, Deal::kLeastOfAStation), {}};
  for (const uint32_t part : {1u, 1u, 2u, 4u}) {
    shape.stations.push_back({part, part * (DealShape::kWhole / 8)});
  }
  const Deal deal(shape);
  for (uint16_t j = 0; j < 4; j++) {
    EXPECT_NEAR(deal.length(j), 64 * 4 * shape.stations[j].weight / 65536.0, 8) << j;
  }
}

}  // namespace
}  // namespace mcast::test
