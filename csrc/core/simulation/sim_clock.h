// A rank's clock: how its time relates to that of the world. Clocks begin anywhere, may run too
// slow or too fast and may jump ahead, as that of a process does which was not run meanwhile.
// Threads: one.
#pragma once

#include <cmath>

#include "base/types.h"

namespace mcast::sim {

class SimClock {
 public:
  SimClock() = default;
  // What it shows when the world begins, and how much of its time passes in one of the world's.
  SimClock(Nanos start, double rate) : shown_(start), rate_(rate) {}

  Nanos at(Nanos world) const {
    const Nanos passed = world - since_;
    return shown_ + (rate_ == 1
                         ? passed
                         : static_cast<Nanos>(std::floor(static_cast<double>(passed) * rate_)));
  }
  // The first moment of the world at which it shows `shown` or more; kNever stays kNever.
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
