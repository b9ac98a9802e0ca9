// The part of a plan that concerns exchanges.
// Threads: pure.
#pragma once

#include "base/rng.h"
#include "sim/swarm/plan.h"

namespace mcast::sim {

// Draws kind, root, bytes and splits of an operation of a group with `members` members.
void draw_exchange(PlannedOp& op, size_t members, Rng& rng);

// Draws consecutive exchanges, after all other operations of this group, with a member that is late
// for the first: so many short blocks use up what may be sent unasked (protocol/unasked_account.h),
// and wait for each other's end.
void draw_exchanges(Plan& plan, size_t group, Rng& rng);

}  // namespace mcast::sim
