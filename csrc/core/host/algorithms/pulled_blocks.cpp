// broadcast and all_gather of more than a slot, where tensors are mapped: 256 KiB of a block a
// round, and slots that carry places only.
//
// 1. Whoever has a block publishes where the next piece of it lies.
// 2. The others copy it from there. All take the same pieces at about the same time, so that memory
// is
//    read once for all of them.
// 3. The operation is complete at a rank when all have done that: until then its block is lent.
//
// Cost per rank, of n bytes a block: broadcast: all but the root copy n from where it is mapped.
// all_gather: (P - 1) n from there, and n in place unless it is there.
#include <algorithm>

#include "base/streaming_copy.h"
#include "host/algorithms/algorithms.h"

namespace mcast {
namespace {

constexpr size_t kPiece = 256u << 10;

}  // namespace

HostPlan plan_pulled_blocks(const wire::Descriptor& d, uint32_t members) {
  HostPlan plan;
  plan.algorithm = HostAlgorithm::kPulledBlocks;
  plan.slice = kPiece;
  plan.rounds = rounds_of(d.bytes, plan.slice);
  plan.large = true;
  plan.whole = wire::is_rooted(d.kind) ? d.bytes : d.bytes * members;
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
  const Slice& own = op.post.outputs[self];
  if (own.data() == input.data()) return;
  copy_result(own.data() + offset, input.data() + offset, clip(offset, op.plan.slice, own.length),
              op.plan.whole);
  streaming_fence();
}

Taken take_pulled_blocks(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  const wire::Descriptor& d = op.post.descriptor;
  const bool broadcast = wire::is_rooted(d.kind);
  const Member self = tools.lane.self();
  if (broadcast && d.root == self) return Taken::kAll;
  if (!large) {
    const bool others = std::count(op.agreed.begin(), op.agreed.end(), true) > 1;
    return others ? Taken::kLarge : Taken::kWaits;
  }
  const uint64_t round = op.first + index;
  const size_t offset = index * op.plan.slice;
  if (op.first_byte == kNever) op.first_byte = tools.port.now();
  bool all = true;
  for (uint32_t i = 0; i < op.post.outputs.size(); i++) {
    // Each begins behind itself: at any moment different blocks are read.
    const uint32_t s = broadcast ? i : (self + i) % tools.lane.size();
    const Member m = broadcast ? d.root : static_cast<Member>(s);
    if (op.taken[m]) continue;
    if (!op.agreed[m]) {
      all = false;
      continue;
    }
    const Slice& out = op.post.outputs[s];
    const size_t length = clip(offset, op.plan.slice, out.length);
    const uint64_t place = tools.lane.header(m, round).address;
    if (!tools.folder.pull(m, place, out.data() + offset, length, op.plan.whole)) {
      return Taken::kFailed;
    }
    streaming_fence();
    op.taken[m] = true;
    if (op.post.on_completed && length > 0) {
      op.post.raise_completed(s, offset, offset + length, out.length);
    }
  }
  if (all) op.last_byte = tools.port.now();
  return all ? Taken::kAll : Taken::kWaits;
}

}  // namespace mcast
