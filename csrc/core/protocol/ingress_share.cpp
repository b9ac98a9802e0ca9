// Rates are measured over intervals of a few milliseconds. Capacity is the highest total seen, with
// a slow decay. How much multicast would take is not known: so while the link is full, reduction
// gives way step by step down to its share, and as soon as something is left unused it takes it
// back. A token bucket turns the rate into moments: a request may overdraw it once (a
// segment from everybody is large), the next waits until the debt is paid.
#include "protocol/ingress_share.h"

#include <algorithm>

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
  const bool was_idle = active_ == 0;
  active_ = multicast != multicast_ ? kIdleIntervals : std::max(0, active_ - 1);
  capacity_ = std::max(capacity_ * kDecay, m + r);
  if (was_idle) {
    rate_ = capacity_;
  } else if (m + r >= kSaturated * capacity_) {
    rate_ *= kYield;
  } else {
    rate_ += kRaise * capacity_;
  }
  rate_ = std::clamp(rate_, share_ * capacity_, capacity_);
  if (was_idle) {
    tokens_ = 0;
    filled_ = now;
  }
  since_ = now;
  multicast_ = multicast;
  reduce_ = reduce;
}

bool IngressShare::take(uint64_t bytes, Nanos now) {
  retry_ = kNever;
  if (active_ == 0 || rate_ <= 0) return true;
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
