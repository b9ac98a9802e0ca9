// Bytes that each rank of an experiment on the engine sent, queued and kept in memory. Threads:
// one.
#pragma once

#include <vector>

#include "sim/world/result.h"
#include "sim/world/world.h"

namespace mcast::sim {

class RankAccounts {
 public:
  // Counts from construction on, and resets the network's accounts. `meter`: null if the heap of
  // ranks is not metered. Both arguments outlive it; the group is already made.
  RankAccounts(World& world, World::GroupId group, HeapMeter* meter);

  // Adds the amounts since construction to `result`. Staging peaks are read from the group, which
  // resets them.
  void put(OpResult* result);

 private:
  void put_sent(OpResult* result);
  void put_peaks(OpResult* result);
  void put_states(OpResult* result) const;

  World& world_;
  const World::GroupId group_;
  HeapMeter* const meter_;
  const std::vector<SimLane*> lanes_;  // by endpoint; null: not a rank's
  std::vector<uint64_t> frames_;       // frames of the group before, by rank
  std::vector<uint64_t> idle_;         // bytes of the heap, by rank
};

}  // namespace mcast::sim
