// The world that a plan describes, in its initial state.
// Threads: data.
#pragma once

#include "sim/swarm/plan.h"
#include "sim/world/world.h"

namespace mcast::sim {

// The plan must pass check(), and outlive the world.
WorldSpec world_of(const Plan& plan);
// Operation `op` of the plan as called by this member.
Operation operation_of(const Plan& plan, uint32_t op, Member member);
// Members that never make the group.
std::vector<Member> absent_from(const Plan& plan, size_t group);

}  // namespace mcast::sim
