// Granting. An owner asks its contributors for a few segments at a time, in turn, so that what is
// under way to it is bounded over all operations of the group, and paced while multicast arrives.
#include <algorithm>
#include <utility>

#include "collective/reductions.h"
#include "wire/aggregation.h"

namespace mcast {

// Contributors are granted in turn, each several segments at a time, as soon as so many are free of
// all that may be outstanding: so grants are few, and what a folded segment makes room for is asked
// for at once.
void Reductions::grant_segments(Operation& op) {
  ReduceRun& run = *op.reduce;
  ReduceOwner& owner = *run.owner;
  const auto others = static_cast<uint32_t>(run.contributors().size() - 1);
  if (others == 0 || (owner.granted() == owner.listed() && run.grants.granted == others)) return;
  const uint32_t most =
      std::max(2u, op.plan.reduce.lookahead / std::max(1u, g_.port.busy_groups()));
  uint64_t outstanding = 0, in_flight = 0;  // contributions
  for (const Sequence s : g_.ops.busy()) {
    const Operation* const o = g_.ops.find(s);
    if (!o->reduce || !o->reduce->owner || o->plan.reduce.unasked) continue;
    const ReduceOwner& earlier = *o->reduce->owner;
    // (Where ranks are excused segments are folded, and arrive, before all have been asked.)
    const uint64_t asked = o->reduce->grants.asked;
    outstanding += asked - std::min(asked, uint64_t{earlier.folded()} * others);
    in_flight += asked - std::min(asked, earlier.arrived());
    if (o == &op) break;
    // A rank may wait for this one before it posts ours: ours must not take its room.
    if (earlier.granted() < earlier.listed() || o->reduce->grants.granted < others) return;
  }
  const uint64_t window = ingress_.window(static_cast<uint64_t>(most) * others);
  for (;;) {
    const bool next_turn = run.grants.granted == others;
    uint32_t step = owner.granted() - run.grants.before;
    if (next_turn) {
      // Little by little while multicast arrives: it goes as fast as the slowest receiver, and a
      // burst would slow it.
      step = std::min(ingress_.pacing() && most > 2 ? 1 : grant_step(most, op.plan.reduce.segment),
                      owner.listed() - owner.granted());
      if (step == 0) return;
    }
    // A turn that began when more was allowed goes on: it may be all that the owner waits for.
    if (outstanding + step > uint64_t{std::max(most, step)} * others) return;
    if (in_flight >= window) {
      if (ingress_.pacing() && !std::exchange(run.grants.held, true)) {
        g_.counters.add(Counter::grant_waits);
      }
      return;
    }
    run.grants.held = false;
    if (next_turn) {
      owner.grant(owner.granted() + step);
      run.grants.granted = 0;
      if (run.stations) announce_diverted(op);
    }
    send_grant(op);
    outstanding += step;
    in_flight += step;
  }
}

// Before the grant: which segments our list has from now on. A few at a time, since a contributor
// that has not posted the operation keeps the frames.
void Reductions::announce_diverted(Operation& op) {
  ReduceRun& run = *op.reduce;
  StationShare& share = *run.stations;
  while (share.announced < run.owner->granted()) {
    const uint16_t station = share.diverted[share.announced - share.direct];
    std::vector<ChunkRange> ranges;
    for (; share.announced < run.owner->listed() && ranges.size() < kMostDiverted;
         share.announced++) {
      const uint32_t segment = run.owner->segment_at(share.announced);
      if (share.diverted[share.announced - share.direct] != station) break;
      if (!ranges.empty() && ranges.back().end == segment) {
        ranges.back().end++;
      } else {
        ranges.push_back({segment, segment + 1});
      }
    }
    wire::Writer body;
    wire::put_divert(body, share.set.stations[station].member, ranges);
    for (const Member m : run.contributors()) {
      g_.send_frame(m, Channel::kReduce, wire::FrameType::kDivert, op.post.sequence, op.plan.hash,
                    body.bytes());
    }
  }
}

// Asks the next contributor for what has been granted.
void Reductions::send_grant(Operation& op) {
  ReduceRun& run = *op.reduce;
  const Member to = run.next_asked(run.grants.granted);
  wire::Writer body;
  body.put<uint32_t>(run.owner->granted());
  g_.send_frame(to, Channel::kReduce, wire::FrameType::kReduceGrant, op.post.sequence, op.plan.hash,
                body.bytes());
  run.grants.granted++;
  run.grants.asked += run.owner->granted() - run.grants.before;
  if (run.grants.granted + 1 == run.contributors().size()) run.grants.before = run.owner->granted();
}

}  // namespace mcast
