// The part of a plan that is about groups that change their path: multicast dies in the middle of
// their life, comes back, and is taken again.
// Threads: one.
#pragma once

#include "base/rng.h"
#include "simulation/swarm/plan.h"

namespace mcast::sim {

// Most of the plans with one group that nothing keeps from it: a twentieth of all.
void draw_paths(Plan& plan, Rng rng);

}  // namespace mcast::sim
