// What must hold of every run of a plan. A law says nothing where it cannot know: laws.cpp tells
// for each when that is.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "simulation/swarm/runner.h"

namespace mcast::sim {

struct Finding {
  // "bytes", "once", "agreement", "blame", "time", "memory", "quiet", "path", "balance"
  std::string law;
  std::string text;  // one line
};

// What is broken, the gravest first.
std::vector<Finding> break_laws(const Plan& plan, const RunEnd& run);

// Without its numbers: whether two findings are of the same kind.
std::string kind_of(const Finding& finding);

}  // namespace mcast::sim
