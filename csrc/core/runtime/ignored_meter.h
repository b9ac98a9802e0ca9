// Counts datagrams that nobody on this lane's host reads (Datagram::ignored()).
//
// Threads: the lane's.
#pragma once

#include "transport/transport.h"

namespace mcast {

class IgnoredMeter {
 public:
  // Number since the first call. The medium is read now and then, and may not know (0).
  uint64_t count(const Datagram& medium, Nanos now) {
    if (asked_ != kNever && now - asked_ < kEvery) return count_;
    asked_ = now;
    const uint64_t all = medium.ignored();
    if (last_ != 0 && all > last_) count_ += all - last_;
    if (all != 0) last_ = all;
    return count_;
  }

 private:
  static constexpr Nanos kEvery = 100 * kMilli;
  Nanos asked_ = kNever;
  uint64_t last_ = 0, count_ = 0;
};

}  // namespace mcast
