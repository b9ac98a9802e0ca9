// The roots' Positions are multicast too, so silence over several lost streams means that the path
// does not work at all, not that it loses some datagrams.
#include "protocol/reachability_monitor.h"

#include <algorithm>

namespace mcast {

void ReachabilityMonitor::on_heard(Member root, Sequence sequence) {
  Root& r = roots_[root];
  r = {0, 0, std::max(r.heard_below, sequence + 1)};
}

bool ReachabilityMonitor::on_stream(Member root, Sequence sequence, Chunk chunks, bool heard) {
  if (heard) {
    on_heard(root, sequence);
    return false;
  }
  Root& r = roots_[root];
  if (sequence < r.heard_below) return false;
  r.chunks += chunks;
  r.streams++;
  if (r.streams < kStreams || (r.chunks < kChunks && r.streams < kManyStreams)) return false;
  r = {0, 0, r.heard_below};
  return true;
}

}  // namespace mcast
