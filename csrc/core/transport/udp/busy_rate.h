// Estimates the rate that a connection could carry, from the kernel's counters: bytes acknowledged,
// divided by the time in which bytes were waiting to be sent minus the time in which the receiver's
// window blocked them.
//
// The kernel's own delivery rate does not work for a stripe. A reader that waits for a frame of the
// slow connection leaves the frames of the fast one in the socket, so the fast connection's rate
// falls to the share it was assigned, and any assignment, however wrong, then looks right. Hence
// the time that the receiver takes is not counted as time of the path.
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
  // Bytes per second; 0 if not known yet.
  double value() const noexcept { return open_ < kLeast ? 0 : acked_ / open_ * 1e6; }

 private:
  // In microseconds. The kernel counts in ticks of 1 to 10 ms.
  static constexpr double kWindow = 200'000, kLeast = 20'000;

  double acked_ = 0, open_ = 0;  // recent totals
  uint64_t total_acked_ = 0, total_open_ = 0;
};

}  // namespace mcast
