// broadcast and all_gather of more than a slot, if tensors are mapped: 256 KiB of a block per
// round, with slots that carry only places.
//
// 1. A rank with a block publishes the place of the next piece of it.
// 2. The others copy it from there. All take the same pieces at about the same time, so that
//   memory is read once for all of them.
// 3. The operation is complete at a rank when all have done step 2: until then its block is lent.
//
// Cost per rank, for blocks of n bytes: broadcast: all but the root copy n from mapped memory.
// all_gather: (P - 1) n from mapped memory, and n in place unless it is there already.
#include "shm/algorithms/pieces.h"

namespace mcast {
namespace {

constexpr size_t kPulledPiece = 256u << 10;

}  // namespace

HostPlan plan_pulled_blocks(const wire::Descriptor& d, uint32_t members) {
  HostPlan plan = plan_blocks(d, members);
  plan.algorithm = HostAlgorithm::kPulledBlocks;
  plan.slice = kPulledPiece;
  plan.rounds = rounds_of(d.bytes, plan.slice);
  plan.large = true;
  return plan;
}

void fill_pulled_blocks(HostTools& tools, HostOperation& op, uint32_t index) {
  const wire::Descriptor& d = op.post.descriptor;
  const Member self = tools.lane.self();
  if (wire::is_rooted(d.kind) && d.root != self) return;
  const size_t offset = index * op.plan.slice;
  const Slice& input = op.post.input;
  tools.lane.header(self, op.first + index).address = tools.port.place_of(input) + offset;
  if (wire::is_rooted(d.kind)) return;
  put_own_piece(op, self, offset, input.data() + offset);
}

// Each rank starts with the block after its own, so that different blocks are read at any moment.
Taken take_pulled_blocks(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  const uint64_t round = op.first + index;
  const Member self = tools.lane.self();
  return take_pieces(tools, op, index, large, self, [&](Member m, std::byte* to, size_t length) {
    return tools.folder.pull(m, tools.lane.header(m, round).address, to, length, op.plan.whole);
  });
}

}  // namespace mcast
