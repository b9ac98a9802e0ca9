// What a run of many plans has covered: which kinds of trouble happened, and which of them happened
// together in a plan whose calls all ended.
// Threads: one.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "simulation/swarm/runner.h"

namespace mcast::sim {

class Reach {
 public:
  void add(const RunEnd& run);
  uint64_t counted(Counter counter) const { return counters_[static_cast<size_t>(counter)]; }
  // "cut+replay": never in one plan that ended.
  std::vector<std::string> missing_pairs() const;

 private:
  std::array<uint64_t, kCounterCount> counters_{};
  std::array<std::array<bool, kFaultKinds>, kFaultKinds> together_{};
};

}  // namespace mcast::sim
