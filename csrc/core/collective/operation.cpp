// Mapping between members and stream slots, and where a stream's bytes can be read from.
#include "collective/operation.h"

#include <algorithm>

#include "base/streaming_copy.h"

namespace mcast {

std::string describe_failed(const Post& post, const std::string& group, Member self, Nanos now) {
  const std::string& name = post.descriptor.name;
  return (name.empty() ? wire::kind_name(post.descriptor.kind) : name) + " (sequence " +
         std::to_string(post.sequence) + ") of group '" + group + "' failed on rank " +
         std::to_string(self) + " after " + seconds_text(now - post.posted) + " (" +
         (post.timeout == kNever ? "no limit" : "limit " + seconds_text(post.timeout)) + ")";
}

Member Operation::member_of(uint32_t slot) const {
  return plan.descriptor.kind == wire::Kind::kBroadcast ? plan.descriptor.root
                                                        : static_cast<Member>(slot);
}

uint64_t Operation::readable() const {
  const Slice& input = post.input;
  if (!input.region || finished) return plan.block;
  const uint64_t ready = input.region->ready();
  return std::min<uint64_t>(plan.block, ready - std::min<uint64_t>(ready, input.offset));
}

void Operation::raise_mark(uint32_t slot, uint64_t before, uint64_t after) const {
  if (reduce && !reduce->lands(slot)) return;
  if (after / post.mark_step > before / post.mark_step || after == plan.block) {
    streaming_fence();
    post.on_mark(slot, after);
  }
}

ConstBytes Operation::source(uint32_t slot) const {
  if (own_slot == slot) {
    if (plan.small && sending_started) return kept;
    return post.input.bytes();
  }
  return post.outputs[slot].bytes();
}

}  // namespace mcast
