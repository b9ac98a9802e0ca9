// The roots' Positions are multicast too, so silence over several lost streams means that the path
// is dead, not that it is lossy.
#include "protocol/deafness.h"

namespace mcast {

bool Deafness::on_stream(Member root, Chunk chunks, bool heard) {
  Root& r = roots_[root];
  if (heard) {
    r = {};
    return false;
  }
  r.chunks += chunks;
  r.streams++;
  if (r.streams < kStreams || (r.chunks < kChunks && r.streams < kManyStreams)) return false;
  r = {};
  return true;
}

}  // namespace mcast
