// Makes a plan that breaks a law as small as it can: leaves out faults, operations, groups, ranks,
// settings and what is special about the world, and lowers sizes and times, as long as a law is
// broken with the same text without its numbers (kind_of()).
// Threads: pure; carries out plans.
#pragma once

#include <functional>
#include <string>

#include "simulation/swarm/laws.h"
#include "simulation/swarm/plan.h"

namespace mcast::sim {

struct Shrunk {
  Plan plan;
  size_t runs = 0;  // that it took
};

// `kind`: kind_of() the finding that is to stay. At most `runs` plans are carried out, and none
// after `stop()` has said true.
Shrunk shrink(const Plan& plan, const std::string& kind, size_t runs,
              const std::function<bool()>& stop = {}, HeapMeter* meter = nullptr);

// The same for anything else that a plan may do: `fails` says whether it does.
Shrunk shrink(const Plan& plan, const std::function<bool(const Plan&)>& fails, size_t runs,
              const std::function<bool()>& stop = {});

}  // namespace mcast::sim
