// Does this member still hear the others' multicast? Memberships age out on switches without an IGMP
// querier, long after the probe at creation went well; repair keeps operations correct then, at a
// crawl. This counts, per root, how much of what it sent had to be repaired. Pure.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

class Deafness {
 public:
  explicit Deafness(uint32_t members) : roots_(members) {}

  // A stream of `root` is complete; `lost` of its `chunks` were found missing. True: nearly all of
  // the last several operations and chunks of that root were lost.
  bool on_stream(Member root, Chunk chunks, Chunk lost);

  static constexpr uint32_t kChunks = 64;      // evidence needed: chunks ...
  static constexpr uint32_t kOperations = 3;   // ... and operations in a row
  static constexpr uint32_t kLostOf10 = 8;     // lost share that counts as deaf, tenths

 private:
  struct Root {
    uint64_t chunks = 0, lost = 0;
    uint32_t operations = 0;
  };
  std::vector<Root> roots_;
};

}  // namespace mcast
