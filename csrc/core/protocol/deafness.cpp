// Evidence is gathered per root until there is enough of it, then judged and started anew. A random
// loss of one chunk in two never gets near four in five over 64 chunks; a dead path always does.
#include "protocol/deafness.h"

#include <algorithm>

namespace mcast {

bool Deafness::on_stream(Member root, Chunk chunks, Chunk lost) {
  Root& r = roots_[root];
  r.chunks += chunks;
  r.lost += std::min(lost, chunks);
  r.operations++;
  if (r.chunks < kChunks || r.operations < kOperations) return false;
  const bool deaf = r.lost * 10 >= r.chunks * kLostOf10;
  r = {};
  return deaf;
}

}  // namespace mcast
