// The part of a plan that concerns messages between two ranks.
// Threads: pure.
#pragma once

#include "base/rng.h"
#include "sim/swarm/plan.h"

namespace mcast::sim {

// About a third of the plans get a few messages of all lengths, or many short ones.
void draw_messages(Plan& plan, Rng rng);

}  // namespace mcast::sim
