// When the timers of an endpoint are to be looked at again.
#pragma once

#include <algorithm>

#include "base/types.h"

namespace mcast {

// Timers begin where there is no clock (a send, an event); the next look, which has one, gives them
// their time. It starts over: restart(), then add() for every timer that is still to come.
class TimerWatch {
 public:
  void touch() noexcept { touched_ = true; }
  bool touched() const noexcept { return touched_; }
  bool due(Nanos now) const noexcept { return touched_ || now >= next_; }
  // Of those that have a time; kNever: there are none.
  Nanos next() const noexcept { return next_; }

  // A timer is found so late that this process must have been away (stopped, suspended), and the
  // peers perhaps with it: what it waited for in the meantime was no patience with them.
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
