// What operations among ranks of one host do with the data of a round. HostCore says when; all
// ranks do the same rounds. Each algorithm has a file of its own, which begins with its steps and
// their cost; here is what they offer, and the dispatch by HostPlan::algorithm.
//
// In a round each rank fills its slot, and takes what it needs of the others'. What is direct is
// not in the slot: that names places, and the takers read the memory there, where they have it
// mapped or by the kernel (process_vm_readv).
//
// Costs are bytes per rank, of P ranks; n: bytes of the descriptor (a block of an all_gather or
// reduce_scatter, else the whole). "Copied": by the CPU from memory to memory, each byte once read
// and once written; "read": by the kernel out of another process; "mapped": by the CPU out of
// another process; "folded": contributions that the rank adds up.
#pragma once

#include <algorithm>
#include <optional>

#include "base/counters.h"
#include "host/folder.h"
#include "host/lane_view.h"
#include "host/operation.h"
#include "host/plan.h"
#include "host/port.h"

namespace mcast {

// What the algorithms of a lane work with. Whoever drives the lane.
struct HostTools {
  const LaneView lane;
  HostPort& port;
  Counters& counters;
  Folder folder;
};

// What came of taking a round.
enum class Taken : uint8_t {
  kAll,     // this rank needs nothing more of it
  kWaits,   // for slots that are not published
  kLarge,   // it could be done, but is large and was not asked for
  kFailed,  // Folder::unreadable()
};

// --- dispatch ---

// Whether the data of the operation's next round is there (whether its slot is free is not asked
// here). `oldest`: everything before it is complete here.
bool ready_to_fill(const HostOperation& op, bool oldest);
// Filling the next round reads the others' memory, which takes long.
bool fill_is_large(const HostOperation& op);
// Fills this rank's slot of round `index`. False: Folder::unreadable().
bool fill_round(HostTools& tools, HostOperation& op, uint32_t index);
// Takes round `index`, which this rank has published, as far as others have. Large ones only if
// `large`.
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
// kMismatch: what `from`, whose round `index` is here, has for this rank is not as long as
// expected.
std::optional<Status> lengths_that_differ(const HostTools& tools, const HostOperation& op,
                                          uint32_t index, Member from);
void fill_exchange(HostTools& tools, HostOperation& op);
Taken take_exchange(HostTools& tools, HostOperation& op, bool large);
void fill_slot_exchange(HostTools& tools, HostOperation& op, uint32_t index);
Taken take_slot_exchange(HostTools& tools, HostOperation& op, uint32_t index, bool large);

// --- what they share ---

// How much of [from, from + length) lies below `end`.
inline size_t clip(size_t from, size_t length, size_t end) {
  return from >= end ? 0 : std::min(length, end - from);
}
// Copies what `from` has of [offset, offset + length) to `at` of this rank's slot.
void copy_to_slot(HostTools& tools, uint64_t round, const Slice& from, size_t offset, size_t length,
                  size_t at);
// Whether a reduction's round can be taken: kAll, then do it, or why not.
Taken reduction_state(const HostOperation& op, bool large);
// all_gather: puts the piece of the own block, which is at `from`, in its place in the own output.
void put_own_piece(HostOperation& op, Member self, size_t offset, const std::byte* from);
// all_reduce goes by spans of the tensor: a part (slice) for each rank. Copies the folded parts of
// span `span` out of the slots of round `index`.
void gather_parts(HostTools& tools, HostOperation& op, uint32_t span, uint32_t index);

}  // namespace mcast
