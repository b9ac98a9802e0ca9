// Selects the algorithm. Through slots a byte is copied twice; read from its owner's memory, once,
// but with a system call, and the owner must wait until all have read. So operations that fit into
// one slot use slots, and so does data for all ranks: a slot is in the cache and all read it from
// there. Large reductions, of which each byte has one reader, are read from memory. Mapped memory
// costs neither the second copy nor the call: then all large data is taken in place. So are
// exchanges, whose blocks all have one reader.
#include "shm/plan.h"

#include <algorithm>

#include "shm/algorithms/algorithms.h"

namespace mcast {
namespace {

constexpr size_t kAlign = 64;  // of parts of a tensor: multiple of elements and of cache lines
static_assert(kHostSlot / kHostMembers >= kAlign);

// An all_reduce in one step reads members x bytes into every rank's cache: at most this many.
constexpr size_t kOneStep = 256u << 10;

}  // namespace

size_t slot_part(uint32_t members) { return kHostSlot / members / kAlign * kAlign; }

uint32_t rounds_of(size_t bytes, size_t slice) {
  return static_cast<uint32_t>(std::max<size_t>(1, (bytes + slice - 1) / slice));
}

HostPlan make_host_plan(const wire::Descriptor& d, uint32_t members, PeerMemory memory) {
  if (d.kind == wire::Kind::kBarrier) return {};
  if (wire::is_exchange(d.kind)) return plan_exchange(members, memory);
  const bool direct = memory != PeerMemory::kSlots, mapped = memory == PeerMemory::kMapped;
  if (!wire::is_reduction(d.kind)) {
    return mapped && d.bytes > kHostSlot ? plan_pulled_blocks(d, members) : plan_blocks(d, members);
  }
  if (d.kind == wire::Kind::kAllreduce) {
    if (d.bytes <= kHostSlot && d.bytes * members <= kOneStep) {
      return plan_slot_reduce(d.bytes, kHostSlot);
    }
    if (mapped) return plan_pulled_all_reduce(d.bytes, members);
    return direct ? plan_direct_all_reduce(d.bytes, members)
                  : plan_slot_all_reduce(d.bytes, members);
  }
  const size_t slice = d.kind == wire::Kind::kReduceScatter ? slot_part(members) : kHostSlot;
  return direct && d.bytes > slice ? plan_direct_reduce() : plan_slot_reduce(d.bytes, slice);
}

}  // namespace mcast
