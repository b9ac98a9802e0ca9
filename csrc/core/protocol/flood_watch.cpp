// Windows of a second, from the totals at their ends. A window in which no chunk arrived says
// nothing about harm: ranks compute, or one is late. A window that is longer than it should be is
// ignored, since noise continues while the group is idle and would be compared with the few chunks
// that arrived then.
#include "protocol/flood_watch.h"

namespace mcast {

FloodWatch::Seen FloodWatch::look(const Totals& totals, Nanos now) {
  const Nanos time = since_ == kNever ? kNever : now - since_;
  if (!due(now)) return Seen::kNothing;
  const Totals before = last_;
  last_ = totals;
  since_ = now;
  if (time >= 2 * kWindow) return Seen::kNothing;
  const uint64_t useless = totals.useless - before.useless;
  const uint64_t live = totals.live - before.live;
  const uint64_t repaired = totals.repaired - before.repaired;
  const uint64_t good = totals.verified - before.verified + repaired;
  rate_ = useless * static_cast<uint64_t>(kSecond) / static_cast<uint64_t>(time);
  const auto too_many = [good](uint64_t bad) { return bad >= kLeast && bad > kTimes * good; };
  const bool noise = too_many(useless);
  if (live + repaired > 0) windows_ = noise && repaired > live ? windows_ + 1 : 0;
  if (windows_ < kWindows) {
    return too_many(useless - (totals.foreign - before.foreign)) ? Seen::kNoise : Seen::kCalm;
  }
  windows_ = 0;
  return Seen::kFlooded;
}

}  // namespace mcast
