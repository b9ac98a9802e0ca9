// An announcement of a root sets a timer for the operations sent by then; later ones get their own
// timer after that. So the data of an operation has alpha to arrive before it is requested, however
// busy its root is. Requested data arrives by stream or is no longer kept, so it is not requested
// twice.
#include "protocol/sent_tracker.h"

#include <algorithm>

namespace mcast {

void SentTracker::arm(Member root, Nanos now) {
  Root& r = roots_[root];
  r.ripe = r.end;
  r.timer = now + alpha_;
  timers_.emplace(r.timer, root);
}

Sequence SentTracker::on_sent(Member root, Sequence end, Sequence next, Nanos now) {
  Root& r = roots_[root];
  const Sequence before = r.end;
  if (end <= before) return before;
  r.end = end;
  r.since = now;
  if (r.timer == kNever && end > next) arm(root, now);
  return before;
}

void SentTracker::due(Sequence next, Nanos now, std::vector<Ask>& out) {
  out.clear();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const Member root = timers_.begin()->second;
    timers_.erase(timers_.begin());
    Root& r = roots_[root];
    r.timer = kNever;
    const Sequence first = std::max(next, r.asked);
    if (first < r.ripe) {
      out.push_back({root, first, r.ripe});
      r.asked = r.ripe;
    }
    if (r.end > std::max(next, r.ripe)) arm(root, now);
  }
}

}  // namespace mcast
