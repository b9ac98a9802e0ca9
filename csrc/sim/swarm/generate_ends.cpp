// Cases that chance alone does not reach. A goodbye arrives before the release if the root of the
// control tree has closed and ended and the release takes a slow path down the tree. Frames for a
// group that is never made are dropped a minute later, when the rank makes another group with their
// sender.
#include "sim/swarm/generate_ends.h"

#include <algorithm>

#include "sim/swarm/draw.h"

namespace mcast::sim {

namespace {

constexpr uint32_t kMostRanksOfEnds = 40;

Nanos until(Rng& rng, Nanos most) {
  return static_cast<Nanos>(rng.below(static_cast<uint64_t>(most) + 1));
}

PlannedRank& special_of(Plan& plan, uint32_t rank) {
  const auto at = std::find_if(plan.special.begin(), plan.special.end(),
                               [&](const PlannedRank& one) { return one.rank == rank; });
  if (at != plan.special.end()) return *at;
  plan.special.emplace_back().rank = rank;
  return plan.special.back();
}

void add_exit(Plan& plan, uint32_t rank, Rng& rng) {
  PlannedFault& fault = plan.faults.emplace_back();
  fault.what = FaultKind::kExit;
  fault.rank = rank;
  fault.at = until(rng, 20 * kMilli);
}

// A tree of several levels, with a rank below the root that receives everything late.
void slow_the_release(Plan& plan, const PlannedGroup& group, Rng& rng) {
  std::erase_if(plan.settings, [](const PlannedSetting& one) { return one.name == "arity"; });
  plan.settings.push_back({"arity", "2"});
  PlannedFault& delay = plan.faults.emplace_back();
  delay.what = FaultKind::kDelay;
  delay.rank = group.ranks[1 + rng.below(2)];
  delay.much = one_of<Nanos>(rng, {200 * kMicro, kMilli, 3 * kMilli});
  delay.length = until(rng, 3 * kSecond);
}

void draw_calls(Plan& plan, uint32_t g, Rng& rng) {
  const auto members = static_cast<uint32_t>(plan.groups[g].ranks.size());
  for (uint64_t count = 1 + rng.below(3); count > 0; count--) {
    PlannedOp& op = plan.ops.emplace_back();
    op.group = g;
    op.kind = one_of(rng, {wire::Kind::kBroadcast, wire::Kind::kAllgather, wire::Kind::kBarrier,
                           wire::Kind::kAllreduce});
    op.bytes = op.kind == wire::Kind::kBarrier ? 0 : 8 * rng.below(2000);
    if (wire::is_rooted(op.kind)) op.root = static_cast<uint32_t>(rng.below(members));
    op.at = plan.groups[g].at;
  }
}

}  // namespace

void draw_noise(Plan& plan, Rng rng) {
  if (plan.ranks() > kMostRanksOfEnds || !rng.chance(0.1)) return;
  PlannedFault& fault = plan.faults.emplace_back();
  fault.what = FaultKind::kFlood;
  fault.rank = rng.chance(0.5) ? kNoMember : static_cast<uint32_t>(rng.below(plan.ranks()));
  if (rng.chance(0.3)) fault.lane = static_cast<uint32_t>(rng.below(2));
  fault.at = until(rng, one_of<Nanos>(rng, {0, 10 * kMilli, 200 * kMilli}));
  fault.length = until(rng, 300 * kMilli);
  fault.every = one_of<Nanos>(rng, {kMilli, 5 * kMilli});
  fault.burst = one_of<double>(rng, {1, 3, 10});
}

void draw_exits(Plan& plan, Rng rng) {
  if (!rng.chance(0.12)) return;
  for (PlannedGroup& group : plan.groups) group.early = rng.chance(0.8);
  const PlannedGroup& group = plan.groups[0];
  const bool all = rng.chance(0.3);
  add_exit(plan, group.ranks[0], rng);
  for (size_t m = 1; m < group.ranks.size(); m++) {
    if (all || rng.chance(0.2)) add_exit(plan, group.ranks[m], rng);
  }
  if (group.ranks.size() >= 4 && rng.chance(0.6)) slow_the_release(plan, group, rng);
}

void draw_absence(Plan& plan, Rng rng) {
  if (plan.ranks() > kMostRanksOfEnds || plan.world.ranks > 1 || !rng.chance(0.05)) return;
  PlannedFault& fault = plan.faults.emplace_back();
  fault.what = FaultKind::kAbsent;
  fault.group = static_cast<uint32_t>(rng.below(plan.groups.size()));
  const auto& ranks = plan.groups[fault.group].ranks;
  fault.rank = ranks[rng.below(ranks.size())];
  PlannedRank& its = special_of(plan, fault.rank);
  its.clock = std::max(its.clock, 0.5);
  PlannedGroup& later = plan.groups.emplace_back();
  for (uint32_t rank = 0; rank < plan.ranks(); rank++) later.ranks.push_back(rank);
  later.at = 130 * kSecond + until(rng, 20 * kSecond);
  draw_calls(plan, static_cast<uint32_t>(plan.groups.size() - 1), rng);
}

}  // namespace mcast::sim
