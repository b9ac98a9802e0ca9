// The root's side of repair: requests are held briefly, so that chunks that several ranks request
// are multicast once instead of sent to each. One per stream of this root. Pure; time is an
// argument.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace mcast {

class RepairServer {
 public:
  // hold: how long to gather requests; 0 if only one member can request. chunks: of this root's
  // stream.
  RepairServer(Nanos hold, Chunk chunks) : hold_(hold), chunks_(chunks) {}

  void add(Member asker, uint32_t id, std::vector<ChunkRange> ranges, Nanos now);
  Nanos deadline() const { return due_; }
  // Returns true once a request has arrived. The repeat counts must then live as long as the
  // operation.
  bool used() const { return used_; }

  struct Answer {
    Member asker;
    uint32_t id;
    std::vector<ChunkRange> unicast;  // send these by stream
    std::vector<ChunkRange> coming;   // report that these will arrive by multicast
  };
  // Most times that one chunk is multicast again; afterwards it is sent by stream.
  static constexpr size_t kMaxRepeats = 3;
  // Ends the hold: sorted disjoint ranges to multicast again, and a reply per request.
  void flush(std::vector<ChunkRange>& again, std::vector<Answer>& answers);

 private:
  struct Pending {
    Member asker;
    uint32_t id;
    std::vector<ChunkRange> ranges;
  };
  // Counts one more repetition of the chunk; returns false if it has reached the limit.
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
