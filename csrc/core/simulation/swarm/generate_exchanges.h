// The part of a plan that is about exchanges.
// Threads: pure.
#pragma once

#include "base/rng.h"
#include "simulation/swarm/plan.h"

namespace mcast::sim {

// Of an operation of a group of so many members: kind, root, bytes, splits.
void draw_exchange(PlannedOp& op, size_t members, Rng& rng);

// Exchanges in a row, behind all other operations of this group, for somebody who is late for the
// first: so many short blocks fill what may leave unasked (protocol/unasked_account.h), and wait
// for each other's end.
void draw_exchanges(Plan& plan, size_t group, Rng& rng);

}  // namespace mcast::sim
