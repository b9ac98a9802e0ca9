// Keeps the roots that send at once in step.
#pragma once

#include <algorithm>

#include "base/ewma.h"
#include "base/types.h"

namespace mcast {

// How far a root may be ahead of the slowest of those that send beside it. A root does not receive
// its own block, so only while all of them send can every link be full: with equal speeds they end
// together, and what one is ahead is time in which the links of the others are not full. Credit
// alone does not make them equal; whoever hears its credit first, as the root of the control tree
// does, is faster. Where the slowest stands still (a rank that was stopped, a lost tail), the
// others go on without it until it moves. Pure; time is an argument.
class SkewLimiter {
 public:
  SkewLimiter(Chunk most, Nanos patience) : most_(most), patience_(patience) {}

  // First chunk that may not be sent; `least`: the least high-water mark of the other streams that
  // have not ended.
  Chunk end(Chunk least, Nanos now) {
    if (moved_ == kNever || least != least_) {
      if (moved_ != kNever) gap_.add(now - moved_);
      least_ = least;
      moved_ = now;
    }
    return now < deadline() ? least + std::min(most_, kNoLimit - least) : kNoLimit;
  }
  // When the slowest has stood still for so long that it is not waited for.
  Nanos deadline() const { return moved_ + std::clamp(4 * gap_.mean(), patience_, 25 * patience_); }

  static constexpr Chunk kNoLimit = 0xffffffff;

 private:
  Chunk most_;
  Nanos patience_;
  Chunk least_ = 0;
  Nanos moved_ = kNever;  // when `least_` last changed
  Ewma gap_;              // time between changes
};

}  // namespace mcast
