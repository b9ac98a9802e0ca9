// The world that a plan describes, before anything happens in it.
// Threads: data.
#pragma once

#include "simulation/swarm/plan.h"
#include "simulation/world.h"

namespace mcast::sim {

// The plan can be carried out (check()), and outlives the world.
WorldSpec world_of(const Plan& plan);

}  // namespace mcast::sim
