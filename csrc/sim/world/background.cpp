// Times between streams are exponential: each host starts load x rate / size streams per second.
#include "sim/world/background.h"

#include <cmath>

namespace mcast::sim {

Background::Background(double load, uint64_t size, double rate, uint32_t hosts, uint64_t seed)
    : between_(static_cast<double>(size) / (rate * load * hosts) * 1e9),
      duration_(static_cast<double>(size) / rate * 1e9),
      hosts_(hosts),
      rng_(mix64(seed + 0x6261636b)) {}

Background::Stream Background::next() {
  at_ += -std::log(1 - rng_.unit()) * between_;
  Stream stream;
  stream.at = static_cast<Nanos>(at_);
  stream.from = static_cast<HostId>(rng_.below(hosts_));
  stream.to = static_cast<HostId>((stream.from + 1 + rng_.below(hosts_ - 1)) % hosts_);
  return stream;
}

Nanos Background::settled() const { return static_cast<Nanos>(10 * duration_); }

}  // namespace mcast::sim
