// The equations of a port, for a train whose packets arrive between `first` and `last`. It starts
// when its first packet is here and the port is free. It ends when all bytes are sent, or one
// packet after its last one arrived, whichever is later: a train is sent packet by packet, not
// stored. If the queue is full, the train's tail is lost: each packet adds the bytes that arrive
// faster than they leave.
#include "sim/network/port.h"

#include <algorithm>
#include <cmath>

namespace mcast::sim {

unsigned Port::room_for(const Passage& here, unsigned packets, double wire) const {
  if (spec_.queue <= 0 || per_byte_ <= 0) return packets;
  const double room = spec_.queue - waiting(here.first);
  const double drained = (here.last - here.first) / per_byte_;
  const double each = std::max(0.0, wire - drained) / packets;
  if (each <= 0) return room >= 0 ? packets : 0;
  // A thousandth of a byte of tolerance: sums of fractions must not refuse a train that fits
  // exactly.
  const double fit = std::floor((room + 1e-3) / each);
  return fit <= 0 ? 0 : static_cast<unsigned>(std::min<double>(packets, fit));
}

Passage Port::in_order(Passage there) {
  if (!uneven_) return there;
  const double shift = std::max(extra_, last_ - there.first);
  if (shift > 0) {
    there = {there.first + shift, there.last + shift};
    delayed_++;
  }
  last_ = there.last;
  return there;
}

Passage Port::pass(const Passage& here, unsigned packets, double wire) {
  if (per_byte_ <= 0) return in_order({here.first + spec_.delay, here.last + spec_.delay});
  const double one = wire / packets * per_byte_;
  if (spec_.burst > 0) {  // a token bucket: its tokens leave immediately
    const double start = std::max(free_, here.first - spec_.burst * per_byte_);
    free_ = start + wire * per_byte_;
    return in_order({std::max(here.first, start + one) + spec_.delay,
                     std::max(here.last, free_) + spec_.delay});
  }
  const double start = std::max(here.first, free_);
  free_ = std::max(start + wire * per_byte_, here.last + one);
  return in_order({start + one + spec_.delay, free_ + spec_.delay});
}

}  // namespace mcast::sim
