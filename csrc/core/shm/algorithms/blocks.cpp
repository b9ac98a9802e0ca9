// broadcast and all_gather: blocks for all ranks go through slots, 128 KiB a round.
//
// 1. A rank with a block copies the next piece of it into its slot (all_gather: and to its place in
//   its own output, while the piece is in the cache).
// 2. The others copy pieces out, in whatever order they are published.
//
// Cost per rank, for blocks of n bytes: broadcast: the root copies n, the others n each.
// all_gather: copies n into slots and P n out of them and in place. No rank reads another process's
// memory: that would need one copy instead of two and still more work, since a slot is in the
// cache, a source is read once for all takers, and results of 4 MiB and more are written past the
// caches, which the kernel's copy does not do.
#include "shm/algorithms/pieces.h"

namespace mcast {

HostPlan plan_blocks(const wire::Descriptor& d, uint32_t members) {
  HostPlan plan;
  plan.algorithm = HostAlgorithm::kBlocks;
  plan.slice = kHostSlot;
  plan.rounds = rounds_of(d.bytes, plan.slice);
  plan.large = plan.rounds > 1;
  plan.whole = wire::is_rooted(d.kind) ? d.bytes : d.bytes * members;
  return plan;
}

void fill_blocks(HostTools& tools, HostOperation& op, uint32_t index) {
  const wire::Descriptor& d = op.post.descriptor;
  const Member self = tools.lane.self();
  const uint64_t round = op.first + index;
  const size_t slice = op.plan.slice, offset = index * slice;
  const bool broadcast = wire::is_rooted(d.kind);
  if (broadcast && d.root != self) return;
  copy_to_slot(tools, round, op.post.input, offset, slice, 0);
  if (broadcast) return;
  put_own_piece(op, self, offset, tools.lane.data(self, round));
}

Taken take_blocks(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  const uint64_t round = op.first + index;
  return take_pieces(tools, op, index, large, 0, [&](Member m, std::byte* to, size_t length) {
    copy_result(to, tools.lane.data(m, round), length, op.plan.whole);
    return true;
  });
}

}  // namespace mcast
