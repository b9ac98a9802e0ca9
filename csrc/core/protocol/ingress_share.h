// The pacer between the two lanes. All-gather and reduce-scatter meet at the receiver's switch
// port, so only the receiver can share it out. It limits the number of contributions that it has
// requested and that are still under way: a queue serves its flows in proportion to their share of
// it, so the ratio of the lanes' windows is the ratio of their rates wherever they meet at a full
// link, whatever its speed, and a window costs nothing if the link is not full. Pure; time is an
// argument.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/types.h"

namespace mcast {

enum class LanePolicy : uint8_t {
  kFair,  // equal windows
  // Multicast first, since FSDP waits for its all-gathers: reduction keeps an eighth of its window.
  kGather,
};

class IngressShare {
 public:
  explicit IngressShare(LanePolicy policy) : policy_(policy) {}

  // Bytes of multicast that have arrived so far. Cheap; call it on every poll.
  void update(uint64_t multicast, Nanos now) {
    if (multicast != multicast_) last_ = now;
    multicast_ = multicast;
    pacing_ = last_ != kNever && now - last_ < kIdle;
  }

  // Returns true if multicast is arriving.
  bool pacing() const { return pacing_; }
  // Number of contributions, out of `most`, that may be requested and not received; at least one.
  uint64_t window(uint64_t most) const {
    return pacing_ && policy_ == LanePolicy::kGather ? std::max<uint64_t>(1, most / 8) : most;
  }

 private:
  // Multicast counts as active this long after its last byte: threads on busy hosts are scheduled 5
  // to 15 ms late.
  static constexpr Nanos kIdle = 20 * kMilli;

  const LanePolicy policy_;
  uint64_t multicast_ = 0;
  Nanos last_ = kNever;
  bool pacing_ = false;
};

}  // namespace mcast
