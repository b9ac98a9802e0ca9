// What a lane knows of datagrams that nobody on its host reads (Datagram::ignored()).
//
// Threads: the lane's.
#pragma once

#include "transport/transport.h"

namespace mcast {

class IgnoredMeter {
 public:
  // Since this was asked first; the medium is asked now and then.
  uint64_t count(const Datagram& medium, Nanos now) {
    if (asked_ != kNever && now - asked_ < kEvery) return last_ - first_;
    last_ = medium.ignored();
    if (asked_ == kNever) first_ = last_;
    asked_ = now;
    return last_ - first_;
  }

 private:
  static constexpr Nanos kEvery = 100 * kMilli;
  Nanos asked_ = kNever;
  uint64_t first_ = 0, last_ = 0;
};

}  // namespace mcast
