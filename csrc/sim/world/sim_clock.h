// A rank's clock: maps the time of the world to the rank's own. Clocks start at any value, may run
// too slow or too fast, and may jump ahead, as the clock of a process does that was not scheduled
// meanwhile. Threads: one.
#pragma once

#include <cmath>

#include "base/types.h"

namespace mcast::sim {

class SimClock {
 public:
  SimClock() = default;
  // `start`: its value when the world begins; `rate`: its nanoseconds per nanosecond of the world.
  SimClock(Nanos start, double rate) : shown_(start), rate_(rate) {}

  Nanos at(Nanos world) const {
    const Nanos passed = world - since_;
    return shown_ + (rate_ == 1
                         ? passed
                         : static_cast<Nanos>(std::floor(static_cast<double>(passed) * rate_)));
  }
  // The first moment of the world at which the clock shows `shown` or more; kNever stays kNever.
  Nanos when(Nanos shown) const {
    if (shown == kNever) return kNever;
    const Nanos left = shown - shown_;
    if (rate_ == 1) return since_ + left;
    const double wait = std::ceil(static_cast<double>(left) / rate_);
    if (wait > 9e18) return kNever;
    Nanos world = since_ + static_cast<Nanos>(wait);
    while (at(world) < shown) world++;
    while (at(world - 1) >= shown) world--;
    return world;
  }
  void jump(Nanos by) { shown_ += by; }
  void set_rate(double rate, Nanos world) {
    shown_ = at(world);
    since_ = world;
    rate_ = rate;
  }

 private:
  Nanos shown_ = 0, since_ = 0;
  double rate_ = 1;
};

}  // namespace mcast::sim
