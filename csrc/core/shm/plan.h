// The plan of an operation among ranks of one host: its algorithm, and its division into rounds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/descriptor.h"

namespace mcast {

// Access that ranks of one host have to each other's memory: the least that any two of them have.
enum class PeerMemory : uint8_t {
  kSlots,   // none
  kRead,    // copy out of it through the kernel
  kMapped,  // and reach tensors where they lie, mostly: those in an ArenaPool, which all have
            // mapped
};

// Each algorithm has a file in algorithms/, which begins with its steps and their cost.
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

// A pure function of the descriptor, the number of ranks and their memory access, so all ranks have
// the same plan.
struct HostPlan {
  HostAlgorithm algorithm = HostAlgorithm::kBarrier;
  bool large = false;  // takes longer than a hand-over to another thread
  // kUnknown: round 0 announces the number.
  static constexpr uint32_t kUnknown = UINT32_MAX;
  uint32_t rounds = 1;
  size_t slice = 0;  // bytes of a block, or of each rank's part, per round; 0: no data
  size_t whole = 0;  // total bytes of a rank's results, if copied out of slots

  // Returns true if peers read the caller's memory in place.
  bool direct() const { return lends() || algorithm == HostAlgorithm::kDirectAllReduce; }
  // Returns true if they may do so until all ranks have consumed the last round.
  bool lends() const {
    return algorithm == HostAlgorithm::kDirectReduce || algorithm == HostAlgorithm::kPulledBlocks ||
           algorithm == HostAlgorithm::kPulledAllReduce || algorithm == HostAlgorithm::kExchange;
  }
};
HostPlan make_host_plan(const wire::Descriptor& descriptor, uint32_t members, PeerMemory memory);

// Bytes per part of a slot that holds one part for each rank: whole cache lines, and so whole
// elements.
size_t slot_part(uint32_t members);
// Number of rounds of `slice` for `bytes`, at least one.
uint32_t rounds_of(size_t bytes, size_t slice);

}  // namespace mcast
