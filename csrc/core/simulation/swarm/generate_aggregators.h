// The part of a plan that is about aggregators: which there are, reductions that are worth dealing
// out to them, and what becomes of them meanwhile.
// Threads: one.
#pragma once

#include "base/rng.h"
#include "simulation/swarm/plan.h"

namespace mcast::sim {

// A fifth of the plans that are not too large get some.
void draw_aggregators(Plan& plan, Rng rng);

}  // namespace mcast::sim
