// Granting. An owner grants its contributors a few segments at a time, in turn, so that the data
// under way to it is limited over all operations of the group, and paced while multicast arrives.
#include <algorithm>
#include <utility>

#include "collective/movements/reductions.h"
#include "wire/aggregation.h"

namespace mcast {

// Contributors are granted in turn, several segments each, as soon as the limit on outstanding
// segments has room for them. So grants are few, and room that a folded segment frees is granted at
// once.
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
    // (If ranks are excused, segments can be folded, and arrive, before all contributors have been
    // asked.)
    const uint64_t asked = o->reduce->grants.asked;
    outstanding += asked - std::min(asked, uint64_t{earlier.folded()} * others);
    in_flight += asked - std::min(asked, earlier.arrived());
    if (o == &op) break;
    // A rank may wait for the older operation before it posts this one: leave the room to the older
    // one.
    if (earlier.granted() < earlier.listed() || o->reduce->grants.granted < others) return;
  }
  const uint64_t window = ingress_.window(static_cast<uint64_t>(most) * others);
  for (;;) {
    const bool next_turn = run.grants.granted == others;
    uint32_t step = owner.granted() - run.grants.before;
    if (next_turn) {
      // In small steps while multicast arrives: it is as fast as its slowest receiver, and a burst
      // would slow that receiver down.
      step = std::min(ingress_.pacing() && most > 2 ? 1 : grant_step(most, op.plan.reduce.segment),
                      owner.listed() - owner.granted());
      if (step == 0) return;
    }
    // A round that began when more was allowed continues: the owner may be waiting for it only.
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
      if (run.dealt) announce_diverted(op);
    }
    send_grant(op);
    outstanding += step;
    in_flight += step;
  }
}

// Sent before the grant: segments that our list has from now on. Only a few at a time, because a
// contributor that has not posted the operation must store the frames.
void Reductions::announce_diverted(Operation& op) {
  ReduceRun& run = *op.reduce;
  FoldShare& share = *run.dealt;
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
    wire::put_divert(body, share.members[station], ranges);
    for (const Member m : run.contributors()) {
      g_.send_frame(m, Channel::kReduce, wire::FrameType::kDivert, op.post.sequence, op.plan.hash,
                    body.bytes());
    }
  }
}

// Grants the next contributor all that the owner has granted so far.
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
