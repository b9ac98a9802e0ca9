// Monitors whether this member still receives the others' multicast. Memberships age out on
// switches without an IGMP querier, long after the probe at creation succeeded; repair then keeps
// operations correct, but very slow. A root counts as unheard when several of its consecutive
// streams were completed by repair without one datagram of theirs. Pure.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

class ReachabilityMonitor {
 public:
  explicit ReachabilityMonitor(uint32_t members) : roots_(members) {}

  // A datagram of `root` about operation `sequence` arrived. Losses of earlier operations no longer
  // count as evidence, even if their repair ends later.
  void on_heard(Member root, Sequence sequence);
  // The stream of `root` in operation `sequence` is complete; `heard`: a datagram of it arrived by
  // multicast. Returns true if there is enough evidence that no datagram of the root arrives any
  // more; the evidence is then reset.
  bool on_stream(Member root, Sequence sequence, Chunk chunks, bool heard);

  // Evidence needed: this many streams in a row, and this many chunks or many more streams.
  static constexpr uint32_t kStreams = 3;
  static constexpr uint64_t kChunks = 64;
  static constexpr uint32_t kManyStreams = 16;

 private:
  struct Root {
    uint64_t chunks = 0;
    uint32_t streams = 0;
    Sequence heard_below = 0;
  };
  std::vector<Root> roots_;
};

}  // namespace mcast
