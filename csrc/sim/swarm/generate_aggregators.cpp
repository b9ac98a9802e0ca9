// Stations are only assigned segments of large operations in which each shard has several segments
// per party (aggregation/plan/placement.h), so plans with aggregators get operations of that size,
// over small segments.
#include "sim/swarm/generate_aggregators.h"

#include <algorithm>

#include "aggregation/plan/placement.h"

namespace mcast::sim {

namespace {

constexpr uint32_t kMostRanksServed = 12;
constexpr uint64_t kLeastDatagram = 1000, kMostReduced = 6u << 20;

template <typename T>
T any_of(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[rng.below(values.size())];
}

Nanos within(Rng& rng, Nanos most) {
  return static_cast<Nanos>(rng.below(static_cast<uint64_t>(most) + 1));
}

// Bytes of an operation of which most is assigned to aggregators: its gain is more than some
// segments of each party.
uint64_t worth_it(const Plan& plan, uint64_t members, uint64_t segment, Rng& rng) {
  const uint64_t parties = members + plan.aggregators.size();
  const uint64_t bytes = any_of<uint64_t>(rng, {16, 32, 64}) * segment * parties;
  return std::max(kLeastAggregated, std::min(bytes, kMostReduced)) + members * 64;
}

void draw_reductions(Plan& plan, uint32_t g, uint64_t segment, Rng& rng) {
  const uint64_t members = plan.groups[g].ranks.size();
  for (uint64_t count = 1 + rng.below(3); count > 0; count--) {
    PlannedOp op;
    op.group = g;
    op.kind =
        any_of(rng, {wire::Kind::kAllreduce, wire::Kind::kReduceScatter, wire::Kind::kReduce});
    // Multicasting so many bytes in tiny chunks would take most of the time.
    const bool tiny = plan.world.datagram < kLeastDatagram;
    if (tiny && op.kind == wire::Kind::kAllreduce) op.kind = wire::Kind::kReduceScatter;
    do {
      op.element = static_cast<Element>(1 + rng.below(10));
      op.reduction = static_cast<Reduction>(1 + rng.below(9));
    } while (!reducible(op.element, op.reduction));
    uint64_t shard = segment * (4 + rng.below(20));
    if (rng.chance(0.8)) shard = std::max(shard, worth_it(plan, members, segment, rng) / members);
    op.bytes = op.kind == wire::Kind::kReduceScatter ? shard : shard * members;
    op.bytes -= op.bytes % element_size(op.element);
    if (wire::is_rooted(op.kind)) op.root = static_cast<uint32_t>(rng.below(members));
    op.at = plan.groups[g].at + (rng.chance(0.5) ? within(rng, 20 * kMilli) : 0);
    if (rng.chance(0.3)) {
      op.late = static_cast<uint32_t>(rng.below(members));
      op.by = op.at + within(rng, any_of<Nanos>(rng, {kMilli, 50 * kMilli, 3 * kSecond}));
    }
    const auto place = static_cast<ptrdiff_t>(rng.below(plan.ops.size() + 1));
    plan.ops.insert(plan.ops.begin() + place, op);
  }
}

void draw_fates(Plan& plan, Rng& rng) {
  for (uint32_t i = 0; i < plan.aggregators.size(); i++) {
    while (rng.chance(0.4)) {
      PlannedFault& fault = plan.faults.emplace_back();
      fault.what = any_of(rng, {FaultKind::kAggKill, FaultKind::kAggKill, FaultKind::kAggEnd,
                                FaultKind::kAggPause, FaultKind::kAggPause, FaultKind::kAggCut});
      fault.aggregator = i;
      fault.at = within(rng, any_of<Nanos>(rng, {0, kMilli, 10 * kMilli, 10 * kMilli, kSecond}));
      if (rng.chance(0.6)) {
        fault.length = within(rng, any_of<Nanos>(rng, {5 * kMilli, 500 * kMilli, 5 * kSecond}));
      }
      if (fault.what == FaultKind::kAggEnd) {
        fault.much = any_of<Nanos>(rng, {0, 10 * kMilli, kSecond, 30 * kSecond});
      }
    }
  }
}

// Openings and contributions that ranks send to stations arrive twice.
void draw_repetitions(Plan& plan, Rng& rng) {
  for (uint32_t i = 0; i < plan.aggregators.size(); i++) {
    if (!rng.chance(0.2)) continue;
    PlannedFault& fault = plan.faults.emplace_back();
    fault.what = FaultKind::kAggRepeat;
    fault.aggregator = i;
    fault.rate = any_of<double>(rng, {0.05, 0.5, 0.9});
    fault.at = rng.chance(0.5) ? 0 : within(rng, 10 * kMilli);
    if (rng.chance(0.3)) fault.length = within(rng, kSecond);
  }
}

// One rank calls with another length than the others: stations receive both, and decline.
void draw_mismatch(Plan& plan, Rng& rng) {
  std::vector<PlannedOp*> dealt;
  for (PlannedOp& op : plan.ops) {
    const bool folded = op.kind == wire::Kind::kAllreduce || op.kind == wire::Kind::kReduceScatter;
    if (folded && op.bytes >= kLeastAggregated / kMostRanksServed && op.odd == kNoMember)
      dealt.push_back(&op);
  }
  if (dealt.empty()) return;
  PlannedOp& op = *dealt[rng.below(dealt.size())];
  op.odd = static_cast<uint32_t>(rng.below(plan.groups[op.group].ranks.size()));
  op.odd_bytes = op.bytes + 8 * element_size(op.element);
}

bool is_set(const Plan& plan, const char* name) {
  return std::any_of(plan.settings.begin(), plan.settings.end(),
                     [&](const PlannedSetting& one) { return one.name == name; });
}

}  // namespace

void draw_aggregators(Plan& plan, Rng rng) {
  if (plan.ranks() > kMostRanksServed || plan.world.hosts < 2 || !rng.chance(0.3)) return;
  for (uint64_t count = 1 + rng.below(4); count > 0; count--) {
    PlannedAggregator& one = plan.aggregators.emplace_back();
    if (rng.chance(0.2)) one.clock = any_of<double>(rng, {0.1, 10, 0.5, 2});
    if (rng.chance(0.5)) one.offset = within(rng, Nanos{1} << rng.below(60));
    if (rng.chance(0.2)) one.slow = any_of<double>(rng, {50, 5});
    if (rng.chance(0.5)) one.lanes = 2;
    if (rng.chance(0.2)) one.quota = any_of<uint64_t>(rng, {1u << 20, 8u << 20, 24u << 20});
  }
  if (!is_set(plan, "incast")) {
    plan.settings.push_back({"incast", any_of(rng, {"65536", "65536", "131072", "262144"})});
  }
  if (rng.chance(0.6)) plan.settings.push_back({"aggregate", "both"});
  if (rng.chance(0.3)) {
    plan.settings.push_back({"aggregator_patience", any_of(rng, {"50", "300", "3000"})});
  }
  const uint64_t incast = config_of(plan).value().incast;
  for (uint32_t g = 0; g < plan.groups.size(); g++) {
    const uint64_t others = std::max<uint64_t>(1, plan.groups[g].ranks.size() - 1);
    const uint64_t segment = std::clamp<uint64_t>(incast / (2 * others), 4096, 262144);
    if (rng.chance(0.8)) draw_reductions(plan, g, segment, rng);
  }
  draw_fates(plan, rng);
  draw_repetitions(plan, rng);
  if (rng.chance(0.08)) draw_mismatch(plan, rng);
}

}  // namespace mcast::sim
