// Keeps the roots that send at once in step.
#pragma once

#include <algorithm>

#include "base/ewma.h"
#include "base/types.h"

namespace mcast {

// Limits how far a root may be ahead of the slowest of those that send concurrently. A root does
// not receive its own block, so all links can be full only while all of them send: with equal
// speeds they end together, and the lead of one is time in which the links of the others are not
// full. Credit alone does not make them equal; a root that gets its credit first, as the root of
// the control tree does, is faster. If the slowest makes no progress (a stopped rank, a lost tail),
// the others continue without it until it does. Pure; time is an argument.
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
  // Time from which the slowest, if it makes no progress, is no longer waited for.
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
