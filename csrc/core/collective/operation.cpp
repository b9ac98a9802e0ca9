// Mapping between members and stream slots, and where a stream's bytes can be read from.
#include "collective/operation.h"

namespace mcast {

std::optional<uint32_t> Operation::slot_of(Member m) const {
  if (plan.descriptor.kind == wire::Kind::kBroadcast) {
    if (m == plan.descriptor.root) return 0;
    return std::nullopt;
  }
  if (m < plan.roots) return m;
  return std::nullopt;
}

Member Operation::member_of(uint32_t slot) const {
  return plan.descriptor.kind == wire::Kind::kBroadcast ? plan.descriptor.root
                                                        : static_cast<Member>(slot);
}

ConstBytes Operation::source(uint32_t slot) const {
  if (own_slot == slot) {
    if (plan.small && sending_started) return kept;
    return post.input.bytes();
  }
  return post.outputs[slot].bytes();
}

}  // namespace mcast
