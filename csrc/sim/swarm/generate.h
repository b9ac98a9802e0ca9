// Generates a plan from a seed: first the kinds of faults, each with probability one half, then
// their strength. Half of the plans have nothing that may fail an operation, so that all laws hold
// exactly; the others have one to three such faults. The same seed gives the same plan until this
// file changes; store the plan to keep it.
// Threads: pure.
#pragma once

#include <cstdint>

#include "sim/swarm/plan.h"

namespace mcast::sim {

Plan generate(uint64_t seed);

}  // namespace mcast::sim
