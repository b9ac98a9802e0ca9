// What a connection could carry, from what the kernel counts of it: bytes acknowledged per time in
// which bytes waited to be, less the time in which the receiver's window held them up.
//
// The kernel's own delivery rate will not do for a stripe. A reader that waits for a frame of the
// slow connection leaves the fast one's in the socket, so the fast one's rate falls to what it was
// dealt: any deal, however wrong, looks right by it. Time that the receiver takes is no time of the
// path.
#pragma once

#include <cstdint>

namespace mcast {

class BusyRate {
 public:
  // Totals of the connection so far: bytes acknowledged, microseconds busy, of these blocked by the
  // receiver's window. They never fall.
  void update(uint64_t acked, uint64_t busy, uint64_t blocked) {
    acked_ += static_cast<double>(acked - total_acked_);
    const uint64_t open = busy - blocked;
    if (busy >= blocked && open > total_open_) {
      open_ += static_cast<double>(open - total_open_);
      total_open_ = open;
    }
    total_acked_ = acked;
    while (open_ > kWindow) {
      open_ /= 2;
      acked_ /= 2;
    }
  }
  // Bytes per second; 0: not yet known.
  double value() const noexcept { return open_ < kLeast ? 0 : acked_ / open_ * 1e6; }

 private:
  // In microseconds. The kernel counts in ticks of 1 to 10 ms.
  static constexpr double kWindow = 200'000, kLeast = 20'000;

  double acked_ = 0, open_ = 0;  // of late
  uint64_t total_acked_ = 0, total_open_ = 0;
};

}  // namespace mcast
