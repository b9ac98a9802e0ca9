// A piece is registered with as much of its successor as a datagram has, so that every datagram
// lies within one piece. A refusal (the memory lock limit) is cached like a registration; the next
// piece tries again.
#include "transport/verbs/gather.h"

#include <algorithm>

#include "base/log.h"

namespace mcast::verbs {

const std::shared_ptr<Registration>& GatherSource::find(const Slice& block, size_t offset,
                                                        size_t length) {
  static const std::shared_ptr<Registration> kNone;
  if (length > largest_ || offset > block.length || length > block.length - offset) return kNone;
  const size_t piece = offset / kGatherPiece * kGatherPiece;
  const size_t first = block.offset + piece;
  const size_t end = first + std::min(kGatherPiece + largest_, block.length - piece);
  const bool same = !region_.owner_before(block.region) && !block.region.owner_before(region_);
  if (same && first == first_ && end == end_) return registration_;
  auto made = register_part(block.region, first, end);
  if (!made.ok() && stats_.gather_refusals++ == 0) {
    log(LogLevel::kWarn, "payloads are copied, not gathered from tensors: %s",
        made.status().message().c_str());
  }
  region_ = block.region;
  first_ = first;
  end_ = end;
  registration_ = made.ok() ? std::move(made).value() : nullptr;
  return registration_;
}

Result<std::shared_ptr<Registration>> GatherSource::register_part(
    const std::shared_ptr<Region>& region, size_t first, size_t end) {
  cache_.drop_dead();
  if (end - first > most_ || cache_.bytes() > most_ - (end - first)) {
    return Status(Code::kResourceExhausted,
                  "more than a quarter of the memory lock limit would be locked; raise it (ulimit "
                  "-l unlimited)");
  }
  return cache_.get(region, first, end - first);
}

void GatherSource::drop_dead() {
  if (cache_.size() == 0 || !region_.expired()) return;
  registration_.reset();
  region_.reset();
  cache_.drop_dead();
}

}  // namespace mcast::verbs
