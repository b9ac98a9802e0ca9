// A time is that of the busiest direction of any NIC, and what passes a NIC is linear in f, the
// part folded at stations. So the time is convex in f, and bisection on its slope finds the least.
// All loads are brought to one denominator, contributors x capacity of the stations, and compared
// there: without rounding, so that the slope's sign is exact. (128 bits: 65536 contributors, any
// capacities.)
//
// In units of S, with K contributors, stations of s links together, c = (K-1)/K; k = K where the
// owner sends its own contribution, K-1 where it keeps it; z = `ratio` where it keeps it, else 1;
// w = `wide`:
//
//   reduce_scatter   worker in f z/K + (1-f) c w, out f k w/K + (1-f) c w; stations in f k w/s,
//                    out f z/s
//   all_gather       worker in c, out 1/K, by multicast
//   all_reduce       both
//   all_reduce with results multicast by the stations:
//                    worker in f + (1-f) c (w+1), out f w + (1-f) (c w + 1/K); stations in f K w/s,
//                    out f/s
//   in a tree        leaves of a rack of m in f m w/s, out f z/s (z = `ratio`); at the top in the
//                    sum over racks of f z/s, or f m w/s where the rack has no leaves
// The slowest stations of a tree count; they are the same for every f.
#include "aggregation/plan/placement.h"

#include <algorithm>
#include <numeric>

namespace mcast {
namespace {

using Wide = unsigned __int128;

struct PlacementLinks {
  uint64_t contributors;
  uint64_t capacity;  // of all stations, not 0
  uint64_t ratio, wide;
  uint64_t tree = 0;  // multiples of f that pass the tree's slowest stations, in `capacity`

  Wide denominator() const { return static_cast<Wide>(contributors) * capacity; }

  // The busiest direction of a reduce_scatter, with a concurrent all_gather if `gather`.
  Wide reduced(uint32_t part, bool kept, bool gather) const {
    const uint64_t others = contributors - 1;
    const uint64_t result = kept ? ratio : 1, sent = (kept ? others : contributors) * wide;
    const uint64_t direct = (kWhole - part) * others * wide;
    const uint64_t in = part * result + direct + (gather ? kWhole * others : 0);
    const uint64_t out = part * sent + direct + (gather ? kWhole : 0);
    return busiest(std::max(in, out), part * (tree != 0 ? tree : std::max(sent, result)));
  }
  // The same for an all_reduce whose results the stations multicast.
  Wide served(uint32_t part) const {
    const uint64_t others = contributors - 1, sent = part * contributors * wide;
    const uint64_t in = part * contributors + (kWhole - part) * others * (wide + 1);
    return busiest(std::max(in, sent + (kWhole - part) * (others * wide + 1)), sent);
  }
  // `worker`: load of a worker's link, if one contributor had S/K; `stations`: load of theirs, in
  // S.
  Wide busiest(uint64_t worker, uint64_t stations) const {
    return std::max(static_cast<Wide>(worker) * capacity,
                    static_cast<Wide>(stations) * kWhole * contributors);
  }
  // Rounded up: a bound on time.
  uint64_t time(Wide load) const {
    return static_cast<uint64_t>((load + denominator() - 1) / denominator());
  }
};

// The least part of [0, kWhole] for which `holds` is true; it is monotone and true for kWhole.
template <typename Holds>
uint32_t first_part(Holds holds) {
  uint32_t low = 0, high = kWhole;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The part with the least `load`, which is convex; the smallest one if there are several.
template <typename Load>
uint32_t least_part(Load load) {
  return first_part([&](uint32_t f) { return f == kWhole || load(f + 1) >= load(f); });
}

// The best part for a concurrent all_gather; if `careful`, limited so that the reduce_scatter alone
// stays within 9/8 of its time on the workers.
uint32_t best_part(const PlacementLinks& links, bool kept, bool careful) {
  const uint32_t best = least_part([&](uint32_t f) { return links.reduced(f, kept, true); });
  if (!careful) return best;
  const Wide most = 9 * links.reduced(0, kept, false);
  const uint32_t beyond = first_part(
      [&](uint32_t f) { return f == kWhole || 8 * links.reduced(f + 1, kept, false) > most; });
  return std::min(best, beyond);
}

// `capacity`: of the stations at the top; not 0.
PlacementLinks links_of(const PlacementInput& input, uint64_t capacity) {
  PlacementLinks links{input.contributors, capacity, input.ratio, input.wide};
  for (const PlacementRack& rack : input.racks) {
    links.tree += rack.leaves > 0 ? input.ratio : rack.contributors * input.wide;
  }
  for (const PlacementRack& rack : input.racks) {
    const uint64_t load = std::max(rack.contributors * input.wide, input.ratio);
    if (rack.leaves == 0 || Wide{load} * links.capacity <= Wide{links.tree} * rack.capacity)
      continue;
    links.tree = load;
    links.capacity = rack.capacity;
  }
  return links;
}

PlacementReason obstacle(const PlacementInput& input, uint64_t capacity) {
  if (input.mode == AggregateMode::kOff) return PlacementReason::kOff;
  if (capacity == 0) return PlacementReason::kNoStations;
  if (input.contributors < 3) return PlacementReason::kFewContributors;
  if (input.bytes < kLeastAggregated) return PlacementReason::kSmall;
  const uint64_t shard = (input.bytes - 1) / input.members + 1;
  if ((shard - 1) / input.segment + 1 < kStationSegments) return PlacementReason::kFewSegments;
  return PlacementReason::kPlaced;
}

// Returns true if the load that the busiest link is spared exceeds the cost of the detour: a few
// segments of every party that are under way when the operation begins and ends.
bool pays(const PlacementInput& input, uint64_t saved) {
  size_t stations = input.capacities.size();
  for (const PlacementRack& rack : input.racks) stations += rack.leaves;
  const Wide cost =
      static_cast<Wide>(kStationSegments) * input.segment * (input.contributors + stations);
  return static_cast<Wide>(saved) * input.bytes >= cost * kWhole;
}

// Assigns shares by capacity; cumulative shares are rounded, so that their sum is exact.
void deal_out(const PlacementInput& input, uint64_t capacity, Placement& placement) {
  uint64_t upto = 0;
  uint32_t dealt = 0;
  for (size_t j = 0; j < input.capacities.size(); j++) {
    upto += input.capacities[j];
    const auto cumulative = static_cast<uint32_t>(Wide{placement.part} * upto / capacity);
    placement.stations[j] = cumulative - dealt;
    dealt = cumulative;
  }
  placement.owner = kWhole - placement.part;
}

}  // namespace

Placement place(const PlacementInput& input) {
  const uint64_t capacity =
      std::accumulate(input.capacities.begin(), input.capacities.end(), uint64_t{0});
  const PlacementLinks links = links_of(input, std::max<uint64_t>(capacity, 1));
  Placement placement;
  placement.stations.resize(input.capacities.size());
  if (input.contributors > 1) {  // a host alone sends no contributions
    placement.workers = links.time(links.reduced(0, false, true));
    placement.alone = links.time(links.reduced(0, false, false));
  }
  placement.planned = placement.served = placement.workers;
  placement.reason = obstacle(input, capacity);
  if (placement.reason != PlacementReason::kPlaced) return placement;

  const bool careful = input.scatter && input.mode == AggregateMode::kCareful;
  bool kept = input.own != OwnShard::kSent;
  uint32_t part = best_part(links, kept, careful);
  if (input.own == OwnShard::kEither) {
    const uint32_t other = best_part(links, false, careful);
    if (links.reduced(other, false, true) < links.reduced(part, true, true)) {
      kept = false;
      part = other;
    }
  }
  if (!input.scatter && input.racks.empty())
    placement.served =
        links.time(links.served(least_part([&](uint32_t f) { return links.served(f); })));
  const uint64_t planned = links.time(links.reduced(part, kept, true));
  if (part == 0 || !pays(input, placement.workers - planned)) {
    placement.reason = PlacementReason::kSmallGain;
    return placement;
  }
  placement.part = part;
  placement.kept = kept;
  placement.planned = planned;
  placement.alone = links.time(links.reduced(part, kept, false));
  deal_out(input, capacity, placement);
  return placement;
}

}  // namespace mcast
