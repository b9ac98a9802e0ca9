// Cases that chance alone does not reach. A path is given up after several streams in a row of
// which nothing arrived by multicast (protocol/reachability_monitor.h) and a check that fails
// meanwhile, so multicast must work when the group is made and then fail for longer than a check,
// while calls continue. Using it again needs a call some seconds later (collective/path_check.cpp).
#include "sim/swarm/generate_paths.h"

#include <algorithm>

#include "sim/swarm/draw.h"

namespace mcast::sim {

namespace {

constexpr uint32_t kMostOnPaths = 8;
constexpr uint64_t kChunksOfABlock = 28, kMostOfABlock = 40'000;
constexpr uint64_t kChunksUnderFlood = 10;
constexpr Nanos kSecondRound = 7200 * kMilli;  // until the path should be multicast again

Nanos between(Rng& rng, Nanos least, Nanos most) {
  return least + static_cast<Nanos>(rng.below(static_cast<uint64_t>(most - least) + 1));
}

bool may_change(const Plan& plan) {
  const PlannedWorld& w = plan.world;
  const bool parts = std::any_of(plan.settings.begin(), plan.settings.end(),
                                 [](const PlannedSetting& one) { return one.name == "subgroups"; });
  return plan.groups.size() == 1 && plan.groups[0].ring == 0 && plan.groups[0].ranks.size() >= 3 &&
         plan.ranks() <= kMostOnPaths && w.ranks == 1 && w.rate >= 1.25e8 &&
         plan.aggregators.empty() && !parts;
}

void set(Plan& plan, const char* name, const char* value) {
  std::erase_if(plan.settings, [&](const PlannedSetting& one) { return one.name == name; });
  plan.settings.push_back({name, value});
}

class Paths {
 public:
  Paths(Plan& plan, Rng& rng) : plan_(plan), rng_(rng) {}

  void draw() {
    make_room();
    draw_round(0, {5300 * kMilli, 5600 * kMilli, 6950 * kMilli});
    // After the second failure the root waits for twice as long.
    if (rng_.chance(0.3)) {
      draw_round(kSecondRound, {10'500 * kMilli, 11'200 * kMilli, 15'500 * kMilli});
    }
  }

  void draw_flood() {
    make_room();
    std::erase_if(plan_.faults,
                  [](const PlannedFault& fault) { return fault.what == FaultKind::kDrop; });
    draw_flood_round();
  }

 private:
  // Removes silences of other kinds, which would be over when the calls begin, or hide these.
  void make_room() {
    std::erase_if(plan_.faults, [](const PlannedFault& fault) {
      return fault.what == FaultKind::kMute || fault.what == FaultKind::kIsolate;
    });
    for (PlannedRank& one : plan_.special) {
      const bool top = one.rank == plan_.groups[0].ranks[0];
      if (top || one.clock < 0.5 || one.clock > 2) one.clock = 1;
    }
    for (PlannedOp& op : plan_.ops) {
      if (op.late != kNoMember) op.by = std::min<Nanos>(op.by, op.at + 5 * kMilli);
    }
    plan_.groups[0].callbacks = 0;
    set(plan_, "probe_timeout", "50");
  }

  void add_op(Nanos at, uint64_t chunks = kChunksOfABlock) {
    PlannedOp op;
    op.kind = wire::Kind::kAllgather;
    op.bytes = std::min(kMostOfABlock, chunks * (plan_.world.datagram - 32));
    op.at = at;
    if (rng_.chance(0.1)) {
      op.late = static_cast<uint32_t>(rng_.below(plan_.groups[0].ranks.size()));
      op.by = at + between(rng_, 0, 5 * kMilli);
    }
    plan_.ops.push_back(op);
  }

  void draw_round(Nanos from, std::initializer_list<Nanos> later) {
    const Nanos pace = one_of<Nanos>(rng_, {2 * kMilli, 3 * kMilli});
    for (uint64_t count = 60 + rng_.below(40), k = 0; k < count; k++) {
      add_op(from + static_cast<Nanos>(k) * pace);
    }
    PlannedFault& mute = plan_.faults.emplace_back();
    mute.what = FaultKind::kMute;
    mute.rank = rng_.chance(0.25) ? any_member() : kNoMember;
    mute.peer = rng_.chance(0.5) ? any_member() : kNoMember;
    mute.at = from + 5 * kMilli;
    mute.length = between(rng_, 300 * kMilli, 400 * kMilli);
    // A cut-over then takes tens of ms, and calls arrive while it is pending.
    if (rng_.chance(0.5)) {
      PlannedFault& delay = plan_.faults.emplace_back();
      delay.what = FaultKind::kDelay;
      delay.rank = plan_.groups[0].ranks[0];
      delay.much = between(rng_, 3 * kMilli, 5 * kMilli);
      delay.at = from + between(rng_, 5 * kMilli, 40 * kMilli);
      delay.length = between(rng_, 60 * kMilli, 400 * kMilli);
    }
    for (const Nanos burst : later) {
      for (Nanos k = 0; k < 8; k++) add_op(from + burst + k * kMilli);
    }
  }

  // Creates consecutive windows of one second in each of which more than nine of ten datagrams are
  // useless and most data arrives by repair (protocol/flood_watch.h).
  void draw_flood_round() {
    constexpr Nanos kBegin = 300 * kMilli, kEnd = 8 * kSecond, kPace = 400 * kMilli;
    for (Nanos at = 0; at < kEnd; at += kPace) add_op(at, kChunksUnderFlood);
    PlannedFault& loss = plan_.faults.emplace_back();
    loss.what = FaultKind::kDrop;
    loss.rate = 0.9;
    PlannedFault& flood = plan_.faults.emplace_back();
    flood.what = FaultKind::kFlood;
    flood.rank = rng_.chance(0.5) ? any_member() : kNoMember;
    flood.lane = rng_.chance(0.7) ? 0 : kNoMember;
    flood.burst = 20;
    flood.every = 5 * kMilli;
    for (PlannedFault* const fault : {&plan_.faults[plan_.faults.size() - 2], &flood}) {
      fault->at = kBegin;
      fault->length = kEnd - kBegin;
    }
    for (const Nanos burst : {13'500 * kMilli, 24 * kSecond}) {
      for (Nanos k = 0; k < 8; k++) add_op(burst + k * kMilli, kChunksUnderFlood);
    }
  }

  uint32_t any_member() {
    const auto& ranks = plan_.groups[0].ranks;
    return ranks[rng_.below(ranks.size())];
  }

  Plan& plan_;
  Rng& rng_;
};

}  // namespace

void draw_paths(Plan& plan, Rng rng) {
  if (!may_change(plan)) return;
  if (rng.chance(0.6)) {
    Paths(plan, rng).draw();
  } else if (rng.chance(0.7)) {
    Paths(plan, rng).draw_flood();
  }
}

}  // namespace mcast::sim
