// Makes a plan from a seed: first which kinds of trouble there are, each with one half, then how
// strong. Half of the plans have nothing that may fail an operation, so that all of their laws hold
// exactly; the others have one to three things that may. The same seed gives the same plan until
// this file changes: what is to stay is a stored plan.
// Threads: pure.
#pragma once

#include <cstdint>

#include "simulation/swarm/plan.h"

namespace mcast::sim {

Plan generate(uint64_t seed);

}  // namespace mcast::sim
