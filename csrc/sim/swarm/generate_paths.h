// The part of a plan that concerns groups that change their path: multicast fails during their
// life, recovers, and is used again.
// Threads: one.
#pragma once

#include "base/rng.h"
#include "sim/swarm/plan.h"

namespace mcast::sim {

// Applies to most plans with one group that may change its path: a twentieth of all plans.
void draw_paths(Plan& plan, Rng rng);

}  // namespace mcast::sim
