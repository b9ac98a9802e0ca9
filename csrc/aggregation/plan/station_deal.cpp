// The plan of the reduction gives the lengths of shards and segments, the planner each station's
// part, and the deal the segments of each part.
#include "aggregation/plan/station_deal.h"

#include <algorithm>
#include <utility>

#include "base/reduce_kernels.h"

namespace mcast {
namespace {

// Depending on the fold order, the owner's own shard is folded last, at any place, or in the
// middle. With racks it belongs to its rack's sum. For 16-bit floats it is sent: a partial result
// in their accumulators would be twice as long as the segment, which is more than a frame holds,
// and more than is saved by keeping the shard.
OwnShard own_shard(Element element, const Agreed& agreed) {
  if (!agreed.racks.flat()) return OwnShard::kSent;
  if (!is_floating(element)) return OwnShard::kKept;
  const bool wider = accumulator_size(element) > element_size(element);
  return agreed.fold == FoldOrder::kTurn && !wider ? OwnShard::kEither : OwnShard::kSent;
}

DealShape shape_of(const StationDeal& out, const Agreed& agreed, uint64_t tag,
                   std::span<const Station> stations, std::span<const uint16_t> tops) {
  DealShape shape;
  shape.tag = tag;
  for (uint32_t m = 0; m < agreed.members; m++) {
    const uint64_t at = std::min<uint64_t>(uint64_t{m} * out.share, out.total);
    const uint64_t bytes = std::min<uint64_t>(out.share, out.total - at);
    shape.segments.push_back(static_cast<uint32_t>((bytes + out.segment - 1) / out.segment));
  }
  for (const Station& s : stations) shape.stations.push_back({s.hash, 0, true});
  for (size_t i = 0; i < tops.size(); i++) {
    shape.stations[tops[i]].weight = out.placement.stations[i];
    shape.stations[tops[i]].leaf = false;
  }
  return shape;
}

// The stations that segments are dealt to: those in no rack of ranks, or all if each is in one.
std::vector<uint16_t> tops_of(std::span<const Station> stations, const Racks& racks) {
  std::vector<uint16_t> tops, all;
  for (uint16_t j = 0; j < stations.size(); j++) {
    all.push_back(j);
    if (!racks.find(stations[j].rack)) tops.push_back(j);
  }
  return tops.empty() ? all : tops;
}

// The other stations, by rack.
std::vector<std::vector<LeafDeal::Leaf>> leaves_of(std::span<const Station> stations,
                                                   std::span<const uint16_t> tops,
                                                   const Racks& racks) {
  std::vector<std::vector<LeafDeal::Leaf>> leaves(racks.count());
  for (uint16_t j = 0; j < stations.size(); j++) {
    if (std::find(tops.begin(), tops.end(), j) != tops.end()) continue;
    leaves[*racks.find(stations[j].rack)].push_back({j, stations[j].capacity});
  }
  return leaves;
}

std::vector<PlacementRack> placement_racks(const std::vector<std::vector<LeafDeal::Leaf>>& leaves,
                                           const Racks& racks) {
  std::vector<PlacementRack> out;
  for (uint32_t r = 0; r < racks.count(); r++) {
    PlacementRack& rack = out.emplace_back();
    rack.contributors = static_cast<uint32_t>(racks.members(r).size());
    for (const LeafDeal::Leaf& leaf : leaves[r]) {
      rack.leaves += leaf.capacity > 0 ? 1 : 0;
      rack.capacity += leaf.capacity;
    }
  }
  return out;
}

}  // namespace

size_t StationDeal::length(Member owner, uint32_t number) const {
  const uint64_t first = std::min<uint64_t>(uint64_t{owner} * share, total);
  const uint64_t end = std::min<uint64_t>(first + share, total);
  const uint64_t at = std::min<uint64_t>(first + uint64_t{number} * segment, end);
  return static_cast<size_t>(std::min<uint64_t>(segment, end - at));
}

void StationDeal::rest() {
  deal.reset();
  kept = placement.kept = false;
  placement.reason = PlacementReason::kSlower;
  placement.part = 0;
  placement.owner = kWhole;
  std::fill(placement.stations.begin(), placement.stations.end(), 0);
}

StationDeal deal_out(const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
                     std::span<const Station> stations) {
  StationDeal out;
  out.placement.reason = PlacementReason::kNoStations;
  const bool scatter = descriptor.kind == wire::Kind::kReduceScatter;
  if (stations.empty() || (!scatter && descriptor.kind != wire::Kind::kAllreduce)) return out;
  const auto element = static_cast<Element>(descriptor.element);
  const size_t bytes = element_size(element);
  if (bytes == 0 || descriptor.bytes == 0) return out;
  if (!stations_fold(element)) return out;
  const Plan plan = make_plan(descriptor, agreed, bytes);
  if (plan.reduce.way != ReduceWay::kScatter && plan.reduce.way != ReduceWay::kGather) return out;
  out.segment = plan.reduce.segment;
  out.share = plan.reduce.share;
  out.total = scatter ? descriptor.bytes * agreed.members : descriptor.bytes;

  PlacementInput input;
  input.scatter = scatter;
  input.bytes = out.total;
  input.members = agreed.members;
  input.contributors = agreed.contributors != 0 ? agreed.contributors : agreed.members;
  input.segment = plan.reduce.segment;
  input.ratio = static_cast<uint32_t>(accumulator_size(element) / bytes);
  input.wide = static_cast<uint32_t>(contribution_ratio(agreed, descriptor));
  input.own = own_shard(element, agreed);
  input.mode = agreed.aggregate;
  const std::vector<uint16_t> tops = tops_of(stations, agreed.racks);
  for (const uint16_t j : tops) input.capacities.push_back(stations[j].capacity);
  const auto leaves = leaves_of(stations, tops, agreed.racks);
  LeafDeal below(tag, leaves);
  if (below.any()) input.racks = placement_racks(leaves, agreed.racks);
  out.placement = place(input);
  if (out.placement.part == 0) return out;
  out.kept = out.placement.kept;
  out.leaves = std::move(below);
  out.deal = std::make_unique<const Deal>(shape_of(out, agreed, tag, stations, tops));
  return out;
}

}  // namespace mcast
