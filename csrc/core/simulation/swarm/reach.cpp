// A kind counts where it did something, not where a plan names it.
#include "simulation/swarm/reach.h"

namespace mcast::sim {

void Reach::add(const RunEnd& run) {
  for (size_t c = 0; c < kCounterCount; c++) counters_[c] += run.reached[c];
  for (size_t one = 0; one < kFaultKinds; one++) {
    for (size_t other = 0; run.over && other < one; other++) {
      if (run.happened[one] > 0 && run.happened[other] > 0) together_[one][other] = true;
    }
  }
}

std::vector<std::string> Reach::missing_pairs() const {
  std::vector<std::string> missing;
  for (size_t one = 0; one < kFaultKinds; one++) {
    for (size_t other = 0; other < one; other++) {
      if (together_[one][other]) continue;
      missing.push_back(std::string(fault_name(static_cast<FaultKind>(other))) + "+" +
                        fault_name(static_cast<FaultKind>(one)));
    }
  }
  return missing;
}

}  // namespace mcast::sim
