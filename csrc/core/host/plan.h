// How an operation among ranks of one host is done: its algorithm, and its cut into rounds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/descriptor.h"

namespace mcast {

// What ranks of one host can do with each other's memory: the least of what any two of them can.
enum class PeerMemory : uint8_t {
  kSlots,   // nothing
  kRead,    // have the kernel copy out of it
  kMapped,  // and reach tensors where they lie, mostly: those in an ArenaPool, which all have
            // mapped
};

// Each has a file in algorithms/, which begins with its steps and what they cost.
enum class HostAlgorithm : uint8_t {
  kBarrier,
  kBlocks,           // broadcast, all_gather
  kPulledBlocks,     // broadcast, all_gather
  kSlotReduce,       // reduce, reduce_scatter, and all_reduce in one step
  kDirectReduce,     // reduce, reduce_scatter
  kSlotAllReduce,    // all_reduce
  kDirectAllReduce,  // all_reduce
  kPulledAllReduce,  // all_reduce
  kExchange,         // all_to_all, gather, scatter
  kSlotExchange,     // all_to_all, gather, scatter
};

// A pure function of the descriptor, the number of ranks and their memory, so all have the same.
struct HostPlan {
  HostAlgorithm algorithm = HostAlgorithm::kBarrier;
  bool large = false;  // takes longer than a hand-over to another thread
  // kUnknown: what is told in round 0 says it.
  static constexpr uint32_t kUnknown = UINT32_MAX;
  uint32_t rounds = 1;
  size_t slice = 0;  // bytes of a block, or of each rank's part, that a round moves; 0: none does
  size_t whole = 0;  // bytes of a rank's results in all, where they are copied out of slots

  // Peers read the caller's memory where it lies ...
  bool direct() const { return lends() || algorithm == HostAlgorithm::kDirectAllReduce; }
  // ... until everybody has consumed the last round.
  bool lends() const {
    return algorithm == HostAlgorithm::kDirectReduce || algorithm == HostAlgorithm::kPulledBlocks ||
           algorithm == HostAlgorithm::kPulledAllReduce || algorithm == HostAlgorithm::kExchange;
  }
};
HostPlan make_host_plan(const wire::Descriptor& descriptor, uint32_t members, PeerMemory memory);

// Of a slot that holds one part for each rank: bytes of a part, in whole cache lines, so in whole
// elements.
size_t slot_part(uint32_t members);
// `bytes` in rounds of `slice`, at least one.
uint32_t rounds_of(size_t bytes, size_t slice);

}  // namespace mcast
