// The algorithms of operations among ranks of one host: each handles the data of a round. HostCore
// decides when; all ranks perform the same rounds. Each algorithm has its own file, which begins
// with its steps and their cost; this header declares their functions, and the dispatch by
// HostPlan::algorithm.
//
// In a round each rank fills its slot, and takes the data it needs from the others' slots. Direct
// data is not in the slot: the slot holds its place, and the ranks that take it read the memory
// there, either mapped or through the kernel (process_vm_readv).
//
// Costs are bytes per rank, of P ranks; n: bytes of the descriptor (a block of an all_gather or
// reduce_scatter, else the whole). "Copied": by the CPU from memory to memory, each byte once read
// and once written; "read": by the kernel out of another process; "mapped": by the CPU out of
// another process; "folded": contributions that the rank adds up.
#pragma once

#include <algorithm>
#include <optional>

#include "base/counters.h"
#include "shm/folder.h"
#include "shm/lane_view.h"
#include "shm/operation.h"
#include "shm/plan.h"
#include "shm/port.h"

namespace mcast {

// Tools for the algorithms of a lane. Used by the thread that drives the lane.
struct HostTools {
  const LaneView lane;
  HostPort& port;
  Counters& counters;
  Folder folder;
};

// Result of taking a round.
enum class Taken : uint8_t {
  kAll,     // this rank needs no more data of it
  kWaits,   // for slots that are not published
  kLarge,   // it could be taken, but is large, which the call excluded
  kFailed,  // Folder::unreadable()
};

// --- dispatch ---

// Returns true if the data of the operation's next round is available (does not check that the slot
// is free). `oldest`: everything before the operation is complete at this rank.
bool ready_to_fill(const HostOperation& op, bool oldest);
// Returns true if filling the next round reads the other ranks' memory, which takes long.
bool fill_is_large(const HostOperation& op);
// Fills this rank's slot of round `index`. Returns false on failure: see Folder::unreadable().
bool fill_round(HostTools& tools, HostOperation& op, uint32_t index);
// Takes as much of round `index`, which this rank has published, as the others have published.
// Takes large rounds only if `large`.
Taken take_round(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// --- the algorithms ---

// barrier.cpp
Taken take_barrier(const HostOperation& op);

// blocks.cpp
HostPlan plan_blocks(const wire::Descriptor& descriptor, uint32_t members);
void fill_blocks(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_blocks(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// pulled_blocks.cpp
HostPlan plan_pulled_blocks(const wire::Descriptor& descriptor, uint32_t members);
void fill_pulled_blocks(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_pulled_blocks(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// slot_reduce.cpp
HostPlan plan_slot_reduce(size_t bytes, size_t slice);
void fill_slot_reduce(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_slot_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// direct_reduce.cpp
HostPlan plan_direct_reduce();
void fill_direct_reduce(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_direct_reduce(HostTools& tools, HostOperation& op, bool large);

// slot_all_reduce.cpp
HostPlan plan_slot_all_reduce(size_t bytes, uint32_t members);
bool slot_all_reduce_is_folded(const HostOperation& op);
void fill_slot_all_reduce(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_slot_all_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// direct_all_reduce.cpp
HostPlan plan_direct_all_reduce(size_t bytes, uint32_t members);
bool fill_direct_all_reduce(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_direct_all_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// pulled_all_reduce.cpp
HostPlan plan_pulled_all_reduce(size_t bytes, uint32_t members);
bool fill_pulled_all_reduce(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_pulled_all_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// exchange.cpp
HostPlan plan_exchange(uint32_t members, PeerMemory memory);
// kMismatch: the block that `from`, whose round `index` is published, has for this rank does not
// have the expected length.
std::optional<Status> lengths_that_differ(const HostTools& tools, const HostOperation& op,
                                          uint32_t index, Member from);
void fill_exchange(HostTools& tools, HostOperation& op);
Taken take_exchange(HostTools& tools, HostOperation& op, bool large);
void fill_slot_exchange(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_slot_exchange(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// --- shared functions ---

// Length of the part of [from, from + length) that lies below `end`.
inline size_t clip(size_t from, size_t length, size_t end) {
  return from >= end ? 0 : std::min(length, end - from);
}
// Copies the part of [offset, offset + length) that `from` contains to `at` in this rank's slot.
void copy_to_slot(HostTools& tools, uint64_t round, const Slice& from, size_t offset, size_t length,
                  size_t at);
// Returns kAll if a reduction's round can be taken now; else the reason why not.
Taken reduction_state(const HostOperation& op, bool large);
// all_gather: copies the piece of this rank's own block, at `from`, to its place in the output.
void put_own_piece(HostOperation& op, Member self, size_t offset, const std::byte* from);
// An all_reduce is processed by spans of the tensor: a part (slice) for each rank. Copies the
// folded parts of span `span` out of the slots of round `index`.
void gather_parts(HostTools& tools, HostOperation& op, uint32_t span, uint32_t index);

}  // namespace mcast
