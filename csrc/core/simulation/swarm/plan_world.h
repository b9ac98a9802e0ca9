// The world that a plan describes, before anything happens in it.
// Threads: data.
#pragma once

#include "simulation/swarm/plan.h"
#include "simulation/world.h"

namespace mcast::sim {

// The plan can be carried out (check()), and outlives the world.
WorldSpec world_of(const Plan& plan);
// Number `op` of the plan as this member calls it.
Operation operation_of(const Plan& plan, uint32_t op, Member member);
// Members that never make the group.
std::vector<Member> absent_from(const Plan& plan, size_t group);

}  // namespace mcast::sim
