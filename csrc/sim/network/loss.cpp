// Two states, with and without loss, whose lengths are drawn when they begin. Mean lengths are
// `burst` and burst x (1 - rate) / rate; if the latter is below one packet, at least one is let
// through between two runs, so rates beyond burst / (burst + 1) are reduced to that.
#include "sim/network/loss.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mcast::sim {

Loss::Loss(double rate, double burst, uint64_t seed)
    : enter_(0), leave_(1), never_(rate <= 0), rng_(seed) {
  if (never_) return;
  if (rate >= 1) {  // always: one run without an end
    losing_ = true;
    left_ = UINT64_MAX;
    return;
  }
  // Without bursts a run of losses is as long as independent losses make it.
  const double mean = std::max(burst, 1 / (1 - rate));
  leave_ = 1 / mean;
  enter_ = std::min(1.0, leave_ * rate / (1 - rate));
  left_ = run_length(enter_);
}

uint64_t Loss::run_length(double probability) {
  if (probability >= 1) return 1;
  const double length = std::log(1 - rng_.unit()) / std::log1p(-probability);
  return 1 + static_cast<uint64_t>(std::min(length, 1e18));
}

void Loss::turn() {
  losing_ = !losing_;
  begun_ = false;
  left_ = run_length(losing_ ? leave_ : enter_);
}

uint64_t Loss::survivors(uint64_t mask, Nanos now) {
  if (never_) return mask;
  if (begun_ && left_ != UINT64_MAX && now - last_ > kIdle) turn();
  last_ = now;
  const auto packets = static_cast<uint64_t>(std::popcount(mask));
  if (!losing_ && left_ > packets) {
    left_ -= packets;
    return mask;
  }
  uint64_t kept = mask;
  for (uint64_t bits = mask; bits != 0; bits &= bits - 1) {
    if (losing_) kept &= ~(bits & -bits);
    begun_ = losing_;
    if (left_ != UINT64_MAX && --left_ == 0) turn();
  }
  return kept;
}

}  // namespace mcast::sim
