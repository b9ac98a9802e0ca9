// All blocks are looked at, since a table has 16 at most.
#include "aggregation/fold/ageing.h"

#include <algorithm>

namespace mcast::aggregation {

std::optional<BlockKey> Ageing::scan(const BlockTable& table, Nanos now) {
  if (now < next_) return std::nullopt;
  const BlockRecord* oldest = nullptr;
  for (uint32_t i = 0; i < table.capacity(); i++) {
    const BlockRecord* const r = table.at(i);
    if (r == nullptr || r->folded || now - r->touched < deadline_) continue;
    if (oldest == nullptr || r->touched < oldest->touched) oldest = r;
  }
  next_ = now + (oldest != nullptr ? deadline_ : std::max<Nanos>(1, deadline_ / 16));
  if (oldest == nullptr) return std::nullopt;
  return oldest->key;
}

}  // namespace mcast::aggregation
