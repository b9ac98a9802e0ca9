// One number for a whole run: two runs with the same number did the same things at the same times.
// Comparable within one build.
#pragma once

#include <cstdint>

#include "base/rng.h"
#include "base/types.h"

namespace mcast::sim {

class TraceHash {
 public:
  // Adds one event at time `at`: what happened, where, how much.
  void add(Nanos at, uint64_t what, uint64_t where, uint64_t much) {
    value_ = mix64(value_ + static_cast<uint64_t>(at) * 0x9e3779b97f4a7c15ULL + (what << 56) +
                   (where << 32) + much);
    steps_++;
  }
  uint64_t value() const { return value_; }
  uint64_t steps() const { return steps_; }

 private:
  uint64_t value_ = 0x6d63617374ULL, steps_ = 0;
};

}  // namespace mcast::sim
