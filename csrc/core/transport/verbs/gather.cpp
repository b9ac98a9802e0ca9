// A piece is registered with as much of its successor as a datagram has, so that none lies in two.
// A refusal (the memory lock limit) is remembered like an answer: the next piece tries again.
#include "transport/verbs/gather.h"

#include <algorithm>

#include "base/log.h"

namespace mcast::verbs {

const std::shared_ptr<Registration>& GatherSource::find(const std::shared_ptr<Region>& region,
                                                        size_t offset, size_t length) {
  static const std::shared_ptr<Registration> kNone;
  if (length > largest_ || offset > region->size() || length > region->size() - offset) {
    return kNone;
  }
  const size_t piece = offset / kGatherPiece;
  const bool same = !region_.owner_before(region) && !region.owner_before(region_);
  if (same && piece == piece_) return registration_;
  const size_t first = piece * kGatherPiece;
  auto made = cache_.get(region, first, std::min(kGatherPiece + largest_, region->size() - first));
  if (!made.ok() && stats_.gather_refusals++ == 0) {
    log(LogLevel::kWarn, "payloads are copied, not gathered from tensors: %s",
        made.status().message().c_str());
  }
  region_ = region;
  piece_ = piece;
  registration_ = made.ok() ? std::move(made).value() : nullptr;
  return registration_;
}

void GatherSource::drop_dead() {
  if (registration_ == nullptr || !region_.expired()) return;
  registration_.reset();
  region_.reset();
  cache_.drop_dead();
}

}  // namespace mcast::verbs
