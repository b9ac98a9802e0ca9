// The root's side of repair: requests are held for a moment, so that chunks which several ranks ask
// for are multicast once instead of sent to each. One per own stream. Pure; time is an argument.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace mcast {

class RepairServer {
 public:
  // hold: how long to gather requests; 0 with a single possible asker. chunks: of the own stream.
  RepairServer(Nanos hold, Chunk chunks) : hold_(hold), chunks_(chunks) {}

  void add(Member asker, uint32_t id, std::vector<ChunkRange> ranges, Nanos now);
  Nanos deadline() const { return due_; }
  // True once somebody has asked. The repeat counts must then live as long as the operation.
  bool used() const { return used_; }

  struct Answer {
    Member asker;
    uint32_t id;
    std::vector<ChunkRange> unicast;  // send these by stream
    std::vector<ChunkRange> coming;   // tell that these come by multicast
  };
  // Most times that one chunk is multicast again; whoever misses it then is served by stream.
  static constexpr size_t kMaxRepeats = 3;
  // Ends the hold: sorted disjoint ranges to multicast again, and an answer per request.
  void flush(std::vector<ChunkRange>& again, std::vector<Answer>& answers);

 private:
  struct Pending {
    Member asker;
    uint32_t id;
    std::vector<ChunkRange> ranges;
  };
  // Counts one more repetition of the chunk; false if it has had all of them.
  bool count_repeat(Chunk chunk);

  Nanos hold_;
  Chunk chunks_;
  Nanos due_ = kNever;
  bool used_ = false;
  std::vector<Pending> pending_;
  // How often each chunk was multicast again, two bits each; empty until the first repetition.
  std::vector<uint64_t> repeats_;
};

}  // namespace mcast
