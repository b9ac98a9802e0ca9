// Invariants of a group beyond its calls: its path, and that frames of correct members can be
// parsed.
#include "sim/swarm/case.h"

namespace mcast::sim {

namespace {

constexpr Nanos kFirstCheck = 5 * kSecond;  // on the ring (collective/path_check.cpp); doubles
constexpr Nanos kCheckTakes = kSecond;      // with the cut-over after it, and a margin

std::string group_name(size_t g) { return "group " + std::to_string(g) + ": "; }

// Correct members send only readable data, so a refusal needs a network that damages it or a
// stranger.
bool all_is_readable(const Case& c) {
  return !has(c.plan, FaultKind::kCorrupt) && !has(c.plan, FaultKind::kReplay);
}

// No group leaves an address that is not flooded.
void left_for_a_flood(const Case& c, size_t g) {
  const uint64_t left = c.run.groups[g].total(Counter::floods_left);
  if (left == 0 || has(c.plan, FaultKind::kFlood)) return;
  c.broken("path", group_name(g) + "left its address " + std::to_string(left) +
                       " times though nobody floods it");
}

void readable(const Case& c, size_t g) {
  for (const Counter counter : {Counter::malformed, Counter::corrupt}) {
    const uint64_t count = c.run.groups[g].total(counter);
    if (count == 0) continue;
    c.broken("agreement", group_name(g) + std::to_string(count) + " " + counter_name(counter) +
                              " though nobody changes what is sent");
  }
}

// All members change the path together, as often as one of them does.
void changed_together(const Case& c, size_t g) {
  const uint64_t switches = c.run.groups[g].total(Counter::path_switches);
  const uint64_t members = c.plan.groups[g].ranks.size();
  if (switches % members == 0) return;
  c.broken("path", group_name(g) + "changed " + std::to_string(switches) + " times by " +
                       std::to_string(members) + " members");
}

bool ends_on_multicast(const Case& c, size_t g) {
  const GroupEnd& group = c.run.groups[g];
  const uint64_t turns = group.total(Counter::path_switches) / c.plan.groups[g].ranks.size();
  return group.multicast == (turns % 2 == 0);
}

// Time before which multicast may not reach everybody again; kNever: unknown. Faults that lose some
// datagrams permanently leave more than enough probes.
Nanos healed(const Case& c) {
  const PlannedWorld& w = c.plan.world;
  Nanos last = c.plan.groups[0].at;
  for (const PlannedFault& fault : c.plan.faults) {
    const bool few = fault.what == FaultKind::kDuplicate || fault.what == FaultKind::kJump ||
                     fault.what == FaultKind::kForget ||
                     (fault.what == FaultKind::kDrop && fault.rate * fault.burst <= 0.1);
    if (few) continue;
    last = fault.end() == kNever ? kNever : std::max(last, fault.end());
    if (last == kNever) break;
  }
  return w.queue != 0 || w.interface != 0 ? kNever : last;
}

// On the ring, the root checks multicast again after 5, 15, 35, ... seconds, counted from its first
// call on, with its next call then; later calls use multicast. Does not check groups whose path may
// have other reasons than reachability, and clocks that jump.
void returns_to_multicast(const Case& c, size_t g) {
  const GroupEnd& group = c.run.groups[g];
  if (ends_on_multicast(c, g) || group.parts || c.plan.groups[g].ring != 0) return;
  if (c.plan.world.ranks > 1) return;
  if (config_of(c.plan).value().algorithm != "auto" || has(c.plan, FaultKind::kJump)) return;
  if (group.total(Counter::rate_tests) > 0) return;
  const Nanos back = healed(c);
  if (back == kNever) return;
  Nanos first = kNever, last = 0;  // calls of the root
  for (const CallEnd& call : c.run.calls) {
    const PlannedOp& op = c.op(call);
    if (op.group != g || call.member != 0 || lane_of(op.kind) != 0) continue;
    if (op.kind == wire::Kind::kBarrier || op.bytes == 0) continue;
    first = std::min(first, call.posted);
    last = std::max(last, call.posted);
  }
  if (first == kNever) return;
  const Nanos from = std::max(back, first);
  const auto asked = static_cast<Nanos>(static_cast<double>(2 * from + kFirstCheck + kCheckTakes) /
                                        c.causes.slowest);
  if (last < asked) return;
  c.broken("path", group_name(g) + "is still on the ring after " + ms(last) +
                       ", multicast has been back since " + ms(back));
}

}  // namespace

// Does not check the path if a call has failed or a member leaves early, maybe in the middle of a
// cut-over.
void path_laws(const Case& c) {
  const bool well = all_well(c) && std::none_of(c.plan.groups.begin(), c.plan.groups.end(),
                                                [](auto& group) { return group.early != 0; });
  if (all_is_readable(c) && !has(c.plan, FaultKind::kFlood) && c.run.unreadable > 0) {
    c.broken("agreement",
             std::to_string(c.run.unreadable) + " malformed though nobody changes what is sent");
  }
  for (size_t g = 0; g < c.run.groups.size(); g++) {
    if (all_is_readable(c)) readable(c, g);
    left_for_a_flood(c, g);
    if (!well) continue;
    changed_together(c, g);
    returns_to_multicast(c, g);
  }
}

}  // namespace mcast::sim
