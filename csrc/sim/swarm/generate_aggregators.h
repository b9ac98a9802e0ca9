// The part of a plan that concerns aggregators: the aggregators, reductions that are large enough
// to be assigned to them, and their faults.
// Threads: one.
#pragma once

#include "base/rng.h"
#include "sim/swarm/plan.h"

namespace mcast::sim {

// A fifth of the plans that are not too large get some.
void draw_aggregators(Plan& plan, Rng rng);

}  // namespace mcast::sim
