// The planner of in-network aggregation: its table, its reasons, and a search over all parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "aggregation/plan/placement.h"
#include "base/rng.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr double kTolerance = 0.0006;  // the tables have three digits

PlacementInput placed_input(uint32_t ranks, size_t stations, OwnShard own) {
  PlacementInput input;
  input.bytes = 64u << 20;
  input.members = input.contributors = ranks;
  input.segment = 60u << 10;
  input.own = own;
  input.capacities.assign(stations, kWhole);
  return input;
}

double whole(uint64_t fraction) { return static_cast<double>(fraction) / kWhole; }

struct PlacedRow {
  uint32_t ranks;
  size_t stations;
  double part, time;
};

void expect_rows(const std::vector<PlacedRow>& rows, OwnShard own, uint32_t ratio, bool scatter) {
  for (const PlacedRow& row : rows) {
    PlacementInput input = placed_input(row.ranks, row.stations, own);
    input.ratio = ratio;
    input.scatter = scatter;
    const Placement placement = place(input);
    const std::string where = std::to_string(row.ranks) + " " + std::to_string(row.stations);
    EXPECT_EQ(placement.reason, PlacementReason::kPlaced) << where;
    if (row.part >= 0) {
      EXPECT_NEAR(whole(placement.part), row.part, kTolerance) << where;
    }
    EXPECT_NEAR(whole(placement.planned), row.time, kTolerance) << where;
    EXPECT_NEAR(whole(placement.workers), 2.0 * (row.ranks - 1) / row.ranks, kTolerance) << where;
  }
}

// The minimum time over all parts: tries every `stride`th one and all around the best of these,
// since times are convex.
template <typename Times>
double least_of_all(Times times, uint32_t stride) {
  uint32_t best = 0;
  for (uint32_t f = 0; f <= kWhole; f += stride)
    if (times(f) < times(best)) best = f;
  double least = times(best);
  for (uint32_t f = best - std::min(best, stride); f <= std::min(kWhole, best + stride); f++)
    least = std::min(least, times(f));
  return least;
}

// The formulas at the top of placement.cpp, in floating point and for any part.
struct PlacedLoads {
  double ranks, links, ratio, wide;

  double reduced(double f, bool kept, bool gather) const {
    const double c = (ranks - 1) / ranks, z = kept ? ratio : 1;
    const double k = (kept ? ranks - 1 : ranks) * wide;
    const double in = f * z / ranks + (1 - f) * c * wide + (gather ? c : 0);
    const double out = f * k / ranks + (1 - f) * c * wide + (gather ? 1 / ranks : 0);
    return std::max(std::max(in, out), f / links * std::max(k, z));
  }
  double served(double f) const {
    const double c = (ranks - 1) / ranks;
    const double in = f + (1 - f) * c * (wide + 1);
    const double out = f * wide + (1 - f) * (c * wide + 1 / ranks);
    return std::max(std::max(in, out), f * ranks * wide / links);
  }
  // The minimum time with an all_gather beside it.
  double best(bool kept, bool careful, uint32_t stride) const {
    const double most = careful ? 1.125 * reduced(0, kept, false) + 1e-9 : 1e9;
    return least_of_all(
        [&](uint32_t f) {
          const double part = static_cast<double>(f) / kWhole;
          return reduced(part, kept, false) > most ? 1e9 : reduced(part, kept, true);
        },
        stride);
  }
};

PlacementInput drawn_input(Rng& rng) {
  PlacementInput input;
  input.contributors = 3 + static_cast<uint32_t>(rng.below(rng.chance(0.5) ? 10 : 200));
  input.members = input.contributors * (1 + static_cast<uint32_t>(rng.below(4)));
  input.bytes = rng.next() >> (24 + rng.below(20));  // up to 2^40
  input.segment = (1 + rng.below(15)) << 12;
  input.ratio = rng.chance(0.3) ? 2 : 1;
  input.wide = input.ratio == 2 && rng.chance(0.5) ? 2 : 1;
  input.own = static_cast<OwnShard>(rng.below(3));
  input.scatter = rng.chance(0.5);
  input.mode = static_cast<AggregateMode>(rng.below(2));
  const size_t stations = rng.below(rng.chance(0.5) ? 9 : 2 * input.contributors);
  for (size_t j = 0; j < stations; j++)
    input.capacities.push_back(
        static_cast<uint32_t>(rng.below(rng.chance(0.2) ? 8 : 2) * kWhole + rng.below(kWhole)));
  return input;
}

// The error in the division of part f among stations, or "".
std::string wrong_deal(const PlacementInput& input, const Placement& placement, uint64_t links) {
  const uint64_t dealt = std::accumulate(placement.stations.begin(), placement.stations.end(),
                                         uint64_t{placement.owner});
  if (dealt != kWhole || placement.owner != kWhole - placement.part) return "weights";
  for (size_t j = 0; j < input.capacities.size() && links > 0; j++) {
    const double share = whole(input.capacities[j]) / whole(links);
    if (std::abs(placement.stations[j] - share * placement.part) > 1)
      return "station " + std::to_string(j);
  }
  return "";
}

// Compares a plan with every `stride`th part.
std::string wrong_plan(const PlacementInput& input, uint32_t stride) {
  const Placement placement = place(input);
  const uint64_t links =
      std::accumulate(input.capacities.begin(), input.capacities.end(), uint64_t{0});
  if (std::string wrong = wrong_deal(input, placement, links); !wrong.empty()) return wrong;
  const bool placed = placement.reason == PlacementReason::kPlaced;
  if (placed != (placement.part > 0)) return "reason";
  if (!placed && placement.reason != PlacementReason::kSmallGain)
    return placement.planned == placement.workers ? "" : "a gain without stations";

  const PlacedLoads loads{static_cast<double>(input.contributors), whole(links),
                          static_cast<double>(input.ratio), static_cast<double>(input.wide)};
  const bool careful = input.scatter && input.mode == AggregateMode::kCareful;
  double best = loads.best(input.own != OwnShard::kSent, careful, stride);
  if (input.own == OwnShard::kEither) best = std::min(best, loads.best(false, careful, stride));
  const double step = 1.01 / kWhole;  // times are rounded up
  const double gain = loads.reduced(0, false, true) - best;
  const double cost = 4.0 * static_cast<double>(input.segment) *
                      static_cast<double>(input.contributors + input.capacities.size()) /
                      static_cast<double>(input.bytes);
  if (placed ? gain < cost - step : gain > cost + step && best < whole(placement.workers) - step)
    return "gain " + std::to_string(gain) + ", cost " + std::to_string(cost);
  if (!placed) return "";
  if (whole(placement.planned) < best - 1e-9 || whole(placement.planned) > best + step)
    return "time " + std::to_string(whole(placement.planned)) + ", best " + std::to_string(best);
  const double alone = loads.reduced(whole(placement.part), placement.kept, false);
  if (std::abs(whole(placement.alone) - alone) > step) return "alone";
  const double served = least_of_all(
      [&](uint32_t f) { return loads.served(static_cast<double>(f) / kWhole); }, stride);
  if (!input.scatter && std::abs(whole(placement.served) - served) > step) return "served";
  return "";
}

TEST(Placement, PlansTheTableOfTheDesign) {
  expect_rows({{8, 1, 0.200, 1.600},
               {8, 2, 0.368, 1.474},
               {8, 4, 0.636, 1.273},
               {8, 7, 0.857, 1.107},
               {8, 8, 0.857, 1.107}},
              OwnShard::kSent, 1, false);
  expect_rows({{8, 1, 0.226, 1.581},
               {8, 2, 0.412, 1.441},
               {8, 4, 0.700, 1.225},
               {8, 7, 1, 1.000},
               {8, 8, 1, 1.000},
               {16, 2, -1, 1.679},
               {16, 4, -1, 1.520},
               {16, 8, -1, 1.278},
               {16, 15, -1, 1.000}},
              OwnShard::kKept, 1, false);
  expect_rows({{8, 1, 0.230, 1.607},
               {8, 2, 0.424, 1.485},
               {8, 4, 0.737, 1.289},
               {8, 7, 1, 1.125},
               {8, 8, 1, 1.125}},
              OwnShard::kKept, 2, false);
}

// 8 hosts in two racks with two leaves each, one station at the top.
TEST(Placement, PlansATree) {
  PlacementInput input = placed_input(8, 1, OwnShard::kSent);
  input.racks = {{4, 2, 2 * kWhole}, {4, 2, 2 * kWhole}};
  EXPECT_NEAR(whole(place(input).part), 0.636, kTolerance);
  EXPECT_EQ(place(input).served, place(input).workers);
  input.racks[1] = {4, 0, 0};  // its contributions go to the top: 1 + 4
  EXPECT_NEAR(whole(place(input).planned), 5 * whole(place(input).part), kTolerance);
  input.racks[1] = {4, 1, kWhole / 4};  // a slow leaf: 16
  EXPECT_NEAR(whole(place(input).planned), 16 * whole(place(input).part), 16 * kTolerance);
}

TEST(Placement, IsCarefulWithAReduceScatter) {
  expect_rows(
      {{8, 1, 0.141, 1.645}, {8, 2, 0.281, 1.539}, {8, 4, 0.563, 1.328}, {8, 7, 0.984, 1.012}},
      OwnShard::kKept, 1, true);
  expect_rows(
      {{8, 1, 0.123, 1.658}, {8, 2, 0.246, 1.566}, {8, 4, 0.492, 1.381}, {8, 7, 0.857, 1.107}},
      OwnShard::kSent, 1, true);
  PlacementInput input = placed_input(8, 4, OwnShard::kKept);
  input.scatter = true;
  EXPECT_LE(place(input).alone, kWhole * 7 / 8 * 9 / 8);
  input.mode = AggregateMode::kBoth;
  EXPECT_NEAR(whole(place(input).planned), 1.225, kTolerance);
  EXPECT_NEAR(whole(place(input).alone), 1.225, kTolerance);  // the stations' 0.7 * 7 / 4
}

TEST(Placement, TellsWhatServingResultsWouldTake) {
  const double times[] = {1.600, 1.474, 1.273, 1.057, 1.000};
  const size_t stations[] = {1, 2, 4, 7, 8};
  for (size_t i = 0; i < 5; i++) {
    PlacementInput input = placed_input(8, stations[i], OwnShard::kSent);
    EXPECT_NEAR(whole(place(input).served), times[i], kTolerance);
    input.scatter = true;  // its results go to one rank each
    EXPECT_EQ(place(input).served, place(input).workers);
  }
}

TEST(Placement, TakesTheFasterOfKeptAndSent) {
  PlacementInput input = placed_input(8, 7, OwnShard::kEither);
  EXPECT_TRUE(place(input).kept);
  EXPECT_EQ(place(input).planned, kWhole);
  input.ratio = 2;
  EXPECT_FALSE(place(input).kept);
  EXPECT_NEAR(whole(place(input).planned), 1.107, kTolerance);
}

TEST(Placement, SaysWhyStationsFoldNothing) {
  const auto reason = [](uint32_t ranks, size_t stations, auto change) {
    PlacementInput input = placed_input(ranks, stations, OwnShard::kSent);
    change(input);
    const Placement placement = place(input);
    EXPECT_EQ(placement.stations.size(), stations);
    if (placement.part == 0) {
      EXPECT_EQ(placement.planned, placement.workers);
      EXPECT_EQ(placement.owner, kWhole);
    }
    return std::string(placement_text(placement.reason));
  };
  const auto same = [](PlacementInput&) {};
  EXPECT_EQ(reason(8, 4, same), "placed");
  EXPECT_EQ(reason(8, 0, same), "no stations");
  EXPECT_EQ(reason(8, 2, [](auto& in) { in.capacities = {0, 0}; }), "no stations");
  EXPECT_EQ(reason(1, 4, same), "fewer than 3 contributors");
  EXPECT_EQ(reason(2, 4, same), "fewer than 3 contributors");
  EXPECT_EQ(reason(8, 4, [](auto& in) { in.contributors = 2; }), "fewer than 3 contributors");
  EXPECT_EQ(reason(3, 4, same), "placed");
  EXPECT_EQ(reason(8, 4, [](auto& in) { in.mode = AggregateMode::kOff; }), "aggregate is off");
  const auto small = [](uint64_t bytes, uint64_t segment) {
    return [=](auto& in) { in.bytes = bytes, in.segment = segment; };
  };
  EXPECT_EQ(reason(8, 4, small((1 << 20) - 1, 4096)), "less than 1 MiB");
  EXPECT_EQ(reason(8, 4, small(1 << 20, 4096)), "placed");
  EXPECT_EQ(reason(8, 4, small(1 << 20, 48 << 10)), "fewer than 4 segments for a station");
  EXPECT_EQ(reason(8, 4, small(1 << 20, 40 << 10)), "the gain is less than the cost");
  EXPECT_EQ(reason(8, 1, [](auto& in) { in.capacities = {1}; }), "the gain is less than the cost");
}

TEST(Placement, DealsByCapacityAndCountsHosts) {
  PlacementInput input = placed_input(8, 0, OwnShard::kKept);
  input.capacities = {kWhole, 0, 3 * kWhole};
  const Placement placement = place(input);
  EXPECT_NEAR(whole(placement.planned), 1.225, kTolerance);  // four links
  EXPECT_EQ(placement.stations[1], 0u);
  EXPECT_NEAR(placement.stations[2], 3.0 * placement.stations[0], 3);
  input.members = 32;  // four ranks on each of the eight hosts
  EXPECT_EQ(place(input).part, placement.part);
  EXPECT_EQ(place(input).planned, placement.planned);
}

TEST(Placement, HoldsTheLargestNumbers) {
  PlacementInput input = placed_input(65535, 0, OwnShard::kEither);
  input.bytes = UINT64_MAX;
  input.ratio = 8;
  input.capacities.assign(4096, UINT32_MAX);
  const Placement placement = place(input);
  EXPECT_EQ(placement.reason, PlacementReason::kPlaced);
  EXPECT_GE(placement.part, kWhole - 1);
  EXPECT_NEAR(whole(placement.planned), 1, 0.001);
  for (const OwnShard own : {OwnShard::kSent, OwnShard::kKept}) {
    input = placed_input(8, 4, own);
    const Placement usual = place(input);
    input.bytes = uint64_t{1} << 40;
    EXPECT_EQ(place(input).part, usual.part);
    EXPECT_EQ(place(input).planned, usual.planned);
  }
}

TEST(Placement, NoOtherPartIsFaster) {
  for_seeds(seeds(10000), [](uint64_t seed) {
    Rng rng(seed);
    return wrong_plan(drawn_input(rng), 1024);
  });
  for_seeds(seeds(50, 1), [](uint64_t seed) {
    Rng rng(seed);
    return wrong_plan(drawn_input(rng), 1);
  });
}

}  // namespace
}  // namespace mcast::test
