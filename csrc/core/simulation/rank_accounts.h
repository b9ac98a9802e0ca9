// What each rank of an experiment on the engine sent, had waiting and kept in memory. Threads: one.
#pragma once

#include <vector>

#include "simulation/result.h"
#include "simulation/world.h"

namespace mcast::sim {

class RankAccounts {
 public:
  // Counts from now on; accounts of the network begin anew. `meter`: null if states are not known.
  // Both outlive it, and the group is made.
  RankAccounts(World& world, World::GroupId group, HeapMeter* meter);

  // Until now. Staging: asks the group, which then counts anew.
  void put(OpResult* result);

 private:
  void put_sent(OpResult* result);
  void put_peaks(OpResult* result);
  void put_states(OpResult* result) const;

  World& world_;
  const World::GroupId group_;
  HeapMeter* const meter_;
  const std::vector<SimLane*> lanes_;  // by endpoint; null: no rank's
  std::vector<uint64_t> frames_;       // of the group, before: by rank
  std::vector<uint64_t> idle_;         // bytes of the heap, by rank
};

}  // namespace mcast::sim
