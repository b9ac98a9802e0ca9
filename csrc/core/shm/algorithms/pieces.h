// Code shared by broadcasts and all_gathers among ranks of one host, for any location of the
// pieces.
#pragma once

#include <algorithm>

#include "base/streaming_copy.h"
#include "shm/algorithms/algorithms.h"

namespace mcast {

// Takes the published pieces of round `index`, from block `first` on, with `take(member, to,
// length)`, which returns false on failure (Folder::unreadable()).
template <typename Take>
Taken take_pieces(HostTools& tools, HostOperation& op, uint32_t index, bool large, uint32_t first,
                  Take&& take) {
  const wire::Descriptor& d = op.post.descriptor;
  const bool broadcast = wire::is_rooted(d.kind);
  if (broadcast && d.root == tools.lane.self()) return Taken::kAll;
  if (op.plan.large && !large) {
    const bool others = std::count(op.agreed.begin(), op.agreed.end(), true) > 1;
    return others ? Taken::kLarge : Taken::kWaits;
  }
  const size_t offset = index * op.plan.slice, blocks = op.post.outputs.size();
  bool all = true;
  for (size_t i = 0; i < blocks; i++) {
    const auto s = static_cast<uint32_t>((first + i) % blocks);
    const Member m = broadcast ? d.root : static_cast<Member>(s);
    if (op.taken[m]) continue;
    if (!op.agreed[m]) {
      all = false;
      continue;
    }
    const Slice& out = op.post.outputs[s];
    const size_t length = clip(offset, op.plan.slice, out.length);
    if (op.first_byte == kNever) op.first_byte = tools.port.now();
    if (!take(m, out.data() + offset, length)) return Taken::kFailed;
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
