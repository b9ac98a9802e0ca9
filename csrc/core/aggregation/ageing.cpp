// A record that moves while a pass is under way is seen twice, or in the next pass only: neither
// makes a block idle that is not, since a block tells when it was touched.
#include "aggregation/ageing.h"

#include <algorithm>
#include <utility>

namespace mcast::aggregation {

Ageing::Ageing(Nanos deadline)
    : deadline_(deadline), interval_(std::max<Nanos>(1, deadline / kParts)) {}

std::optional<BlockKey> Ageing::scan(const BlockTable& table, Nanos now) {
  if (now < next_) return std::nullopt;
  next_ = now + interval_;
  const uint64_t size = table.capacity();
  const uint64_t end = size * (part_ + 1) / kParts;
  for (uint64_t i = size * part_ / kParts; i < end; i++) {
    const BlockRecord* const r = table.at(static_cast<uint32_t>(i));
    if (r == nullptr || r->folded || now - r->touched < deadline_) continue;
    if (oldest_ && oldest_touched_ <= r->touched) continue;
    oldest_ = r->key;
    oldest_touched_ = r->touched;
  }
  part_ = (part_ + 1) % kParts;
  return part_ == 0 ? std::exchange(oldest_, std::nullopt) : std::nullopt;
}

}  // namespace mcast::aggregation
