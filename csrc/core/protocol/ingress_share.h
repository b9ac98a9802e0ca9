// The pacer between the two lanes. All-gather and reduce-scatter meet at the receiver's switch
// port, so only the receiver can share it out: it slows the grants of the reduce lane while
// multicast data arrives. Reduction gets what multicast leaves of the measured capacity, and at
// least its policy's share; without multicast traffic it is not paced at all. Pure; time is an
// argument.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace mcast {

enum class LanePolicy : uint8_t {
  kFair,    // half for each lane
  kGather,  // multicast first: FSDP waits for its all-gathers; reduction keeps a tenth
};

class IngressShare {
 public:
  explicit IngressShare(LanePolicy policy)
      : share_(policy == LanePolicy::kFair ? 0.5 : 0.1),
        used_(policy == LanePolicy::kFair ? 0.92 : 0.8) {}

  // Bytes that have arrived so far on each lane. Cheap; call it on every poll.
  void update(uint64_t multicast, uint64_t reduce, Nanos now);
  // Whether contributors may be asked for `bytes` more now; then they count as asked.
  bool take(uint64_t bytes, Nanos now);
  // When take() is worth another try; kNever unless it refused.
  Nanos deadline() const { return retry_; }

  bool pacing() const { return active_ > 0; }
  double capacity() const { return capacity_; }  // bytes per second
  uint64_t waits() const { return waits_; }

 private:
  static constexpr Nanos kInterval = 2 * kMilli;
  // Intervals for which multicast counts as active after its last byte.
  static constexpr int kIdleIntervals = 10;
  static constexpr Nanos kMemory = 40 * kMilli, kLongMemory = 200 * kMilli;
  static constexpr Nanos kSettle = 10 * kMilli, kLearn = 80 * kMilli, kRelearn = kSecond;

  void learn(uint64_t arrived, Nanos now);

  const double share_, used_;  // of the capacity: reduction's floor; all but the margin
  Nanos since_ = -1;
  uint64_t multicast_ = 0, reduce_ = 0;  // at `since_`
  Nanos learned_ = -kRelearn;            // when the last phase without pacing began
  uint64_t mark_ = 0;                    // bytes that had arrived on both lanes ...
  Nanos marked_ = 0;                     // ... when the measuring in it began
  bool learning_ = false;
  double total_ = 0, multicast_rate_ = 0;  // smoothed, bytes per second
  double capacity_ = 0, rate_ = 0;         // bytes per second
  double tokens_ = 0;                      // bytes; negative: asked ahead
  Nanos filled_ = 0;
  int active_ = 0;
  Nanos retry_ = kNever;
  uint64_t waits_ = 0;
};

}  // namespace mcast
