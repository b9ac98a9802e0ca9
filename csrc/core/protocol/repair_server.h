// The root's side of repair: requests are held for a moment, so that chunks which several ranks ask
// for are multicast once instead of sent to each. One per own stream. Pure; time is an argument.
#pragma once

#include <array>
#include <vector>

#include "base/types.h"
#include "protocol/chunk_set.h"

namespace mcast {

class RepairServer {
 public:
  // hold: how long to gather requests; 0 with a single possible asker.
  explicit RepairServer(Nanos hold) : hold_(hold) {}

  void add(Member asker, uint32_t id, std::vector<ChunkRange> ranges, Nanos now);
  Nanos deadline() const { return due_; }
  // Somebody has asked: what has been multicast again is remembered here.
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
  Nanos hold_;
  Nanos due_ = kNever;
  bool used_ = false;
  std::vector<Pending> pending_;
  std::array<ChunkSet, kMaxRepeats> repeated_;  // [k]: multicast again more than k times
};

}  // namespace mcast
