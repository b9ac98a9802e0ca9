// One root's stream as one receiver sees it: the chunks that have arrived, how far the root is
// known to have sent, and the lost chunks. Pure; time is an argument.
#pragma once

#include <algorithm>
#include <vector>

#include "base/bitmap.h"
#include "base/types.h"

namespace mcast {

struct ReceiverParams {
  Chunk tolerance = 1;       // chunks that may overtake before a gap is a loss
  Nanos alpha = 2 * kMilli;  // of the cutoff timer
};

class BlockReceiver {
 public:
  BlockReceiver(Chunk chunks, const ReceiverParams& params) : have_(chunks), params_(params) {}

  // This member's own block: no chunk is to be received.
  void set_all() { have_.set_all(); }

  Chunk chunks() const { return static_cast<Chunk>(have_.size()); }
  bool has(Chunk c) const { return have_.test(c); }
  bool complete() const { return have_.full(); }
  const Bitmap& bitmap() const { return have_; }

  // Chunk `c` (< chunks()) was verified and placed; `live`: it arrived by multicast, so it shows
  // how far the root has sent. Returns false if it was there already.
  bool accept(Chunk c, bool live, Nanos now) {
    if (live) observe(c, now);
    if (!have_.test_and_set(c)) return false;
    progress(now);
    arrivals_++;
    return true;
  }
  // A datagram of chunk `c` was seen, placed or not.
  void observe(Chunk c, Nanos now) {
    if (c >= seen_end_) {
      progress(now);
      seen_end_ = c + 1;
      announced_ = std::max(announced_, seen_end_);
    }
  }
  // The root has announced that it has sent chunks [0, sent).
  void on_position(Chunk sent, Nanos now);

  // Highest index drained + 1: the base of credit. Losses do not hold it back.
  Chunk high_water() const { return announced_; }
  bool heard() const { return announced_ > 0; }
  // Returns true if a datagram of the stream itself arrived (not only repairs or announcements).
  bool heard_live() const { return seen_end_ > 0; }
  // Chunks declared lost so far.
  uint32_t lost() const { return lost_; }

  // Appends the ranges that have become lost since the last call: holes further behind the newest
  // chunk than the tolerance and, when the cutoff timer is due and the socket was seen empty
  // (`drained`), every hole below the announced end. Sets `cutoff_fired` in the second case.
  void detect(Nanos now, bool drained, std::vector<ChunkRange>& lost, bool& cutoff_fired);
  // Next time at which detect() must be called even if no datagram arrives; kNever: not needed.
  Nanos deadline() const;

 private:
  void report(Chunk end, std::vector<ChunkRange>& lost);
  void progress(Nanos now) {
    if (arrivals_ == 0) first_ = now;
    last_ = now;
  }

  Bitmap have_;
  ReceiverParams params_;
  Chunk seen_end_ = 0;         // highest chunk seen by multicast + 1
  Chunk announced_ = 0;        // the same or announced by a Position
  mutable Chunk scanned_ = 0;  // holes below it were reported
  uint32_t lost_ = 0;
  uint64_t arrivals_ = 0;
  Nanos first_ = 0, last_ = 0;  // first arrival, last progress
};

}  // namespace mcast
