// The laws: invariants of every run of a plan. A law does not check cases in which its outcome is
// open; laws.cpp lists them for each.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "sim/swarm/runner.h"

namespace mcast::sim {

struct Finding {
  // "bytes", "once", "agreement", "blame", "time", "memory", "quiet", "path", "balance"
  std::string law;
  std::string text;  // one line
};

// The laws that the run broke, the gravest first.
std::vector<Finding> break_laws(const Plan& plan, const RunEnd& run);

// The finding without its numbers, for comparing kinds of findings.
std::string kind_of(const Finding& finding);

}  // namespace mcast::sim
