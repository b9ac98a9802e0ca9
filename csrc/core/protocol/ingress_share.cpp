// Threads that get their turn late see arrivals in bursts, and a burst must not pass for capacity.
// So capacity is what arrived on the average of a phase without pacing, in which both lanes fill
// the link; one comes first and then now and then, because a total that is low since reduction
// gives way would else pass for a full link. How much multicast would take is not known: so
// reduction gets what multicast leaves, less a margin. If multicast can use the margin it grows
// into it and reduction gives way further, down to its share; if not, no more than the margin is
// lost. A token bucket turns the rate into moments: a request may overdraw it once (a segment from
// everybody is large), the next waits until the debt is paid.
#include "protocol/ingress_share.h"

#include <algorithm>
#include <cmath>

namespace mcast {

void IngressShare::update(uint64_t multicast, uint64_t reduce, Nanos now) {
  // Whoever was refused asks again now or has no need any more.
  if (now >= retry_) retry_ = kNever;
  if (since_ < 0) {
    since_ = filled_ = now;
    multicast_ = multicast;
    reduce_ = reduce;
    return;
  }
  const Nanos passed = now - since_;
  if (passed < kInterval) return;
  const double per_second = 1e9 / static_cast<double>(passed);
  const double m = static_cast<double>(multicast - multicast_) * per_second;
  const double r = static_cast<double>(reduce - reduce_) * per_second;
  // Half of what is remembered is older than that.
  const auto smooth = [passed](double& value, double now_value, Nanos memory) {
    const double ratio = static_cast<double>(passed) / static_cast<double>(memory);
    value += (1 - std::exp2(-ratio)) * (now_value - value);
  };
  smooth(multicast_rate_, m, kMemory);
  smooth(total_, m + r, kLongMemory);
  const bool was_idle = active_ == 0;
  active_ = multicast != multicast_ ? kIdleIntervals : std::max(0, active_ - 1);
  learn(multicast + reduce, now);
  rate_ = std::max(share_ * capacity_, used_ * capacity_ - multicast_rate_);
  if (was_idle) {
    tokens_ = 0;
    filled_ = now;
  }
  since_ = now;
  multicast_ = multicast;
  reduce_ = reduce;
}

void IngressShare::learn(uint64_t arrived, Nanos now) {
  if (active_ == 0) {
    learning_ = false;
  } else if (!learning_ && now - learned_ >= kRelearn) {
    learning_ = true;
    learned_ = now;
    mark_ = 0;
  }
  if (!learning_) {
    capacity_ = std::max(capacity_, total_);
  } else if (mark_ == 0 && now - learned_ >= kSettle) {
    mark_ = arrived;
    marked_ = now;
  } else if (now - learned_ >= kLearn && now > marked_) {
    capacity_ = static_cast<double>(arrived - mark_) * 1e9 / static_cast<double>(now - marked_);
    total_ = capacity_;
    learning_ = false;
  }
}

bool IngressShare::take(uint64_t bytes, Nanos now) {
  retry_ = kNever;
  if (active_ == 0 || learning_ || rate_ <= 0) return true;
  const double burst = rate_ * 1e-9 * static_cast<double>(2 * kInterval);
  tokens_ = std::min(burst, tokens_ + rate_ * 1e-9 * static_cast<double>(now - filled_));
  filled_ = now;
  if (tokens_ < 0) {
    // A debt from a moment of a lower estimate must not last.
    const double wait = std::min(-tokens_ / rate_ * 1e9, static_cast<double>(10 * kInterval));
    retry_ = now + std::max<Nanos>(static_cast<Nanos>(wait), 10 * kMicro);
    waits_++;
    return false;
  }
  tokens_ -= static_cast<double>(bytes);
  return true;
}

}  // namespace mcast
