// Runs schedules of sends on a simulated network: streams over its links, without CPU costs of
// hosts.
#pragma once

#include <memory>
#include <vector>

#include "sim/world/experiment.h"
#include "sim/world/schedules/schedule.h"

namespace mcast::sim {

// Runs one schedule for each of the experiment's operations, all concurrently. Returns an error if
// they are not done by spec.limit.
Result<OpResult> run_schedules(const ExperimentSpec& spec,
                               std::vector<std::unique_ptr<Schedule>> schedules,
                               const Progress& progress);

}  // namespace mcast::sim
