// One direction of a link and the queue in front of it: a rate, a delay, a limit, and the time at
// which it is free again. There are no departure events: for one class in FIFO order at constant
// rate that time is sufficient. Times are nanoseconds with fractions, so that rates need no
// rounding; below 2^50 ns (13 days) they are exact to less than one.
#pragma once

#include <cstdint>

namespace mcast::sim {

// Times at which the first and the last packet of a train are complete at some place.
struct Passage {
  double first = 0, last = 0;
};

struct PortSpec {
  double rate = 0;   // bytes per second; 0: no limit, packets never wait
  double delay = 0;  // to the other end, ns
  double queue = 0;  // maximum waiting bytes; more are lost. 0: no limit
  double mark = 0;   // ECN: packets that find more than this waiting are marked; 0: never
  double burst = 0;  // bytes of a shaper's bucket (tbf); 0: a plain link
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
  // Time at which the last byte that was taken has left.
  double free_at() const { return free_; }
  // Bytes that wait, or are being sent, at time `t`.
  double waiting(double t) const {
    return per_byte_ > 0 && free_ > t ? (free_ - t) / per_byte_ : 0;
  }
  // Returns how many of `packets` packets with `wire` bytes in total find room; the last ones are
  // refused.
  unsigned room_for(const Passage& here, unsigned packets, double wire) const;
  // Takes packets; returns the times at which they are complete at the other end.
  Passage pass(const Passage& here, unsigned packets, double wire);
  // Stops it from sending before `t`: the next port's queue is full.
  void hold_until(double t) { free_ = t > free_ ? t : free_; }
  // From now on packets take this much longer to the other end, in order: packets sent after the
  // delay has decreased do not overtake.
  void set_extra_delay(double extra) {
    extra_ = extra;
    uneven_ = true;
  }
  // Trains that arrived later because of that.
  uint64_t delayed() const { return delayed_; }
  // Time at which `bytes` bytes are left of those that wait now.
  double drained_to(double bytes) const { return free_ - bytes * per_byte_; }

 private:
  Passage in_order(Passage there);

  PortSpec spec_;
  double per_byte_ = 0;  // ns
  double free_ = 0;
  bool uneven_ = false;  // the delay is not constant
  double extra_ = 0, last_ = 0;
  uint64_t delayed_ = 0;
};

}  // namespace mcast::sim
