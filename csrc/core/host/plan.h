// How an operation among ranks of one host is done: its algorithm, and its cut into rounds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/descriptor.h"

namespace mcast {

// Each has a file in algorithms/, which begins with its steps and what they cost.
enum class HostAlgorithm : uint8_t {
  kBarrier,
  kBlocks,           // broadcast, all_gather
  kSlotReduce,       // reduce, reduce_scatter, and all_reduce in one step
  kDirectReduce,     // reduce, reduce_scatter
  kSlotAllReduce,    // all_reduce
  kDirectAllReduce,  // all_reduce
};

// A pure function of the descriptor, the number of ranks and whether all can read each other's
// memory, so all ranks have the same.
struct HostPlan {
  HostAlgorithm algorithm = HostAlgorithm::kBarrier;
  bool large = false;  // takes longer than a hand-over to another thread
  uint32_t rounds = 1;
  size_t slice = 0;  // bytes of a block, or of each rank's part, that a round moves; 0: none does
  size_t whole = 0;  // bytes of a rank's results in all, where they are copied out of slots

  // Peers read the inputs where they lie ...
  bool direct() const { return lends() || algorithm == HostAlgorithm::kDirectAllReduce; }
  // ... until everybody has consumed the last round.
  bool lends() const { return algorithm == HostAlgorithm::kDirectReduce; }
};
HostPlan make_host_plan(const wire::Descriptor& descriptor, uint32_t members, bool direct);

// Of a slot that holds one part for each rank: bytes of a part, in whole cache lines, so in whole
// elements.
size_t slot_part(uint32_t members);
// `bytes` in rounds of `slice`, at least one.
uint32_t rounds_of(size_t bytes, size_t slice);

}  // namespace mcast
