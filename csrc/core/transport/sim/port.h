// One direction of a link and the queue in front of it: a rate, a delay, a limit, and the time at
// which it is free again. There are no events of departure: for one class in FIFO order at constant
// rate that time says all. Times are nanoseconds with fractions, so that rates need no rounding;
// below 2^50 ns (13 days) they are exact to less than one.
#pragma once

#include <cstdint>

namespace mcast::sim {

// When the first and the last packet of a train are whole somewhere.
struct Passage {
  double first = 0, last = 0;
};

struct PortSpec {
  double rate = 0;   // bytes per second; 0: no limit, nothing ever waits
  double delay = 0;  // to the other end, ns
  double queue = 0;  // bytes that may wait; more are lost. 0: no limit
  double mark = 0;   // ECN: packets that find more than this waiting are marked; 0: never
  double burst = 0;  // a shaper with a bucket of so many bytes (tbf); 0: a plain link
  // Lossless: beyond `pause` waiting bytes the feeding port stops until `resume` are left; 0:
  // never.
  double pause = 0, resume = 0;
};

class Port {
 public:
  Port() = default;
  // A shaper's bucket is full at first.
  explicit Port(const PortSpec& spec)
      : spec_(spec),
        per_byte_(spec.rate > 0 ? 1e9 / spec.rate : 0),
        free_(-spec.burst * per_byte_) {}

  const PortSpec& spec() const { return spec_; }
  // When the last byte that was taken has left.
  double free_at() const { return free_; }
  // Bytes that wait, or are being sent, at time `t`.
  double waiting(double t) const {
    return per_byte_ > 0 && free_ > t ? (free_ - t) / per_byte_ : 0;
  }
  // How many of `packets` packets with `wire` bytes in all find room; the others are the last ones.
  unsigned room_for(const Passage& here, unsigned packets, double wire) const;
  // Takes packets in; returns when they are whole at the other end.
  Passage pass(const Passage& here, unsigned packets, double wire);
  // Keeps it from sending before `t`: the next port's queue is full.
  void hold_until(double t) { free_ = t > free_ ? t : free_; }
  // From now on packets take so much longer to the other end, in their order: those that are sent
  // after the delay has shrunk do not overtake.
  void set_extra_delay(double extra) {
    extra_ = extra;
    uneven_ = true;
  }
  // Trains that came later for that.
  uint64_t delayed() const { return delayed_; }
  // When so many bytes are left of what waits now.
  double drained_to(double bytes) const { return free_ - bytes * per_byte_; }

 private:
  Passage in_order(Passage there);

  PortSpec spec_;
  double per_byte_ = 0;  // ns
  double free_ = 0;
  bool uneven_ = false;  // the delay is not always the same
  double extra_ = 0, last_ = 0;
  uint64_t delayed_ = 0;
};

}  // namespace mcast::sim
