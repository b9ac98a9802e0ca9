// broadcast and all_gather of more than a slot, where tensors are mapped: 256 KiB of a block a
// round, and slots that carry places only.
//
// 1. Whoever has a block publishes where the next piece of it lies.
// 2. The others copy it from there. All take the same pieces at about the same time, so that
//    memory is read once for all of them.
// 3. The operation is complete at a rank when all have done that: until then its block is lent.
//
// Cost per rank, of n bytes a block: broadcast: all but the root copy n from where it is mapped.
// all_gather: (P - 1) n from there, and n in place unless it is there.
#include "host/algorithms/pieces.h"

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

// Each begins behind itself: at any moment different blocks are read.
Taken take_pulled_blocks(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  const uint64_t round = op.first + index;
  const Member self = tools.lane.self();
  return take_pieces(tools, op, index, large, self, [&](Member m, std::byte* to, size_t length) {
    return tools.folder.pull(m, tools.lane.header(m, round).address, to, length, op.plan.whole);
  });
}

}  // namespace mcast
