// The plan of the reduction says how long shards and segments are, the planner which part each
// station gets, the dealing which segments these are.
#include "collective/station_deal.h"

#include <algorithm>

#include "base/reduce_kernels.h"

namespace mcast {
namespace {

// The own shard is the last that is folded, or it does not matter, or it belongs in the middle.
OwnShard own_shard(Element element, FoldOrder order) {
  if (!is_floating(element)) return OwnShard::kKept;
  return order == FoldOrder::kTurn ? OwnShard::kEither : OwnShard::kSent;
}

DealShape shape_of(const StationDeal& out, const Agreed& agreed, uint64_t tag,
                   std::span<const Station> stations) {
  DealShape shape;
  shape.tag = tag;
  for (uint32_t m = 0; m < agreed.members; m++) {
    const uint64_t at = std::min<uint64_t>(uint64_t{m} * out.share, out.total);
    const uint64_t bytes = std::min<uint64_t>(out.share, out.total - at);
    shape.segments.push_back(static_cast<uint32_t>((bytes + out.segment - 1) / out.segment));
  }
  for (size_t j = 0; j < stations.size(); j++) {
    shape.stations.push_back({stations[j].hash, out.placement.stations[j]});
  }
  return shape;
}

}  // namespace

size_t StationDeal::length(Member owner, uint32_t number) const {
  const uint64_t first = std::min<uint64_t>(uint64_t{owner} * share, total);
  const uint64_t end = std::min<uint64_t>(first + share, total);
  const uint64_t at = std::min<uint64_t>(first + uint64_t{number} * segment, end);
  return static_cast<size_t>(std::min<uint64_t>(segment, end - at));
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
  const Plan plan = make_plan(descriptor, agreed, bytes);
  if (plan.way != ReduceWay::kScatter && plan.way != ReduceWay::kGather) return out;
  out.segment = plan.segment;
  out.share = plan.share;
  out.total = scatter ? descriptor.bytes * agreed.members : descriptor.bytes;

  PlacementInput input;
  input.scatter = scatter;
  input.bytes = out.total;
  input.members = agreed.members;
  input.contributors = agreed.contributors != 0 ? agreed.contributors : agreed.members;
  input.segment = plan.segment;
  input.ratio = static_cast<uint32_t>(accumulator_size(element) / bytes);
  input.own = own_shard(element, agreed.fold);
  input.mode = agreed.aggregate;
  for (const Station& s : stations) input.capacities.push_back(s.capacity);
  out.placement = place(input);
  if (out.placement.part == 0) return out;
  out.kept = out.placement.kept;
  out.deal = std::make_unique<const Deal>(shape_of(out, agreed, tag, stations));
  return out;
}

}  // namespace mcast
