// The exponentially weighted moving average of round trips and intervals.
#pragma once

#include "base/types.h"

namespace mcast {

// Every sample weighs 1/8, as in TCP's smoothed round trip (RFC 6298); the first one counts fully.
// Whole nanoseconds, rounded towards zero, so that equal samples give equal means on every machine.
class Ewma {
 public:
  void add(Nanos sample) { mean_ = mean_ == 0 ? sample : (7 * mean_ + sample) / 8; }
  // 0 before the first sample that is not 0.
  Nanos mean() const { return mean_; }

 private:
  Nanos mean_ = 0;
};

}  // namespace mcast
