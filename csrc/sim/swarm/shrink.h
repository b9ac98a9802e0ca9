// Minimizes a plan that breaks a law: removes faults, operations, groups, ranks, settings and
// special properties of the world, and lowers sizes and times, as long as the law is broken with
// the same text without its numbers (kind_of()).
// Threads: pure; carries out plans.
#pragma once

#include <functional>
#include <string>

#include "sim/swarm/laws.h"
#include "sim/swarm/plan.h"

namespace mcast::sim {

struct Shrunk {
  Plan plan;
  size_t runs = 0;  // runs that it took
};

// `kind`: kind_of() the finding to preserve. At most `runs` plans are run, and none after `stop()`
// has returned true.
Shrunk shrink(const Plan& plan, const std::string& kind, size_t runs,
              const std::function<bool()>& stop = {}, HeapMeter* meter = nullptr);

// The same for any other property of a run: `fails` returns true if the plan has it.
Shrunk shrink(const Plan& plan, const std::function<bool(const Plan&)>& fails, size_t runs,
              const std::function<bool()>& stop = {});

}  // namespace mcast::sim
