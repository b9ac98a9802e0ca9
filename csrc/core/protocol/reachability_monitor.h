// Does this member still hear the others' multicast? Memberships age out on switches without an
// IGMP querier, long after the probe at creation went well; repair keeps operations correct then,
// at a crawl. A root counts as unheard when several of its streams in a row were completed by
// repair without one datagram of theirs. Pure.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

class ReachabilityMonitor {
 public:
  explicit ReachabilityMonitor(uint32_t members) : roots_(members) {}

  // Something of `root` about operation `sequence` was heard. What was lost of earlier ones is no
  // evidence any more, even if its repair is over later.
  void on_heard(Member root, Sequence sequence);
  // The stream of `root` in operation `sequence` is complete; `heard`: a datagram of it arrived by
  // multicast. True: enough evidence that nothing is heard of the root any more; the evidence
  // starts anew.
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
