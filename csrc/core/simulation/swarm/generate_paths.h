// The part of a plan that is about groups that change their path: multicast dies in the middle of
// their life, comes back, and is taken again.
// Threads: one.
#pragma once

#include "base/rng.h"
#include "simulation/swarm/plan.h"

namespace mcast::sim {

// A tenth of the plans that have nothing else that keeps one of their groups from it.
void draw_paths(Plan& plan, Rng rng);

}  // namespace mcast::sim
