// Events of programs and addresses outside a group's work: ranks that end in order, ranks that
// never make a group, strangers that send to the groups' addresses.
// Threads: pure.
#pragma once

#include "base/rng.h"
#include "sim/swarm/plan.h"

namespace mcast::sim {

void draw_noise(Plan& plan, Rng rng);
void draw_exits(Plan& plan, Rng rng);
void draw_absence(Plan& plan, Rng rng);

}  // namespace mcast::sim
