// Tracks when the timers of an endpoint are to be checked again.
#pragma once

#include <algorithm>

#include "base/types.h"

namespace mcast {

// Timers start at calls without a clock (a send, an event); the next check, which has a clock, sets
// their time. A check begins with restart(), then calls add() for every timer that is still
// pending.
class TimerWatch {
 public:
  void touch() noexcept { touched_ = true; }
  bool touched() const noexcept { return touched_; }
  bool due(Nanos now) const noexcept { return touched_ || now >= next_; }
  // The earliest time of the timers that have one; kNever if there are none.
  Nanos next() const noexcept { return next_; }

  // Returns true if a timer is found so late that this process must have been stopped or suspended,
  // perhaps with its peers: time limits must then not count the time away.
  bool away(Nanos now, Nanos liveness_limit) const noexcept {
    return next_ != kNever && now - next_ > liveness_limit / 8;
  }

  void restart() noexcept {
    touched_ = false;
    next_ = kNever;
  }
  void add(Nanos at) noexcept { next_ = std::min(next_, at); }

 private:
  bool touched_ = false;
  Nanos next_ = kNever;
};

}  // namespace mcast
