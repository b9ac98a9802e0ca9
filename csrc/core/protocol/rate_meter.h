// Measures the rate at which a path moves a group's large operations, and the rate at which a train
// of frames arrives. Both serve the comparison of multicast with unicast (collective/rate_test.h).
// Pure; time is an argument.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/types.h"

namespace mcast {

// Rate of operations that end one after the other: bytes per second of time in which at least one
// of them was under way. The best of several batches of operations counts: late ranks and busy
// hosts make a path look slower than it is, but never faster.
class RateMeter {
 public:
  static constexpr uint32_t kBatch = 4;    // operations
  static constexpr uint32_t kBatches = 2;  // at least

  // An operation that moved `bytes` was under way from `begin` to `end`; ends do not go back.
  void add(uint64_t bytes, Nanos begin, Nanos end) {
    const Nanos busy = std::max<Nanos>(0, end - std::max(begin, last_end_));
    last_end_ = std::max(last_end_, end);
    total_ += busy;
    batch_time_ += busy;
    batch_bytes_ += bytes;
    if (++operations_ % kBatch != 0) return;
    const auto seconds = static_cast<double>(std::max(batch_time_, kMicro)) / kSecond;
    best_ = std::max(best_, static_cast<double>(batch_bytes_) / seconds);
    batch_time_ = 0;
    batch_bytes_ = 0;
  }
  // Returns true if it has measured for `busy`, and enough operations.
  bool enough(Nanos busy) const { return operations_ >= kBatches * kBatch && total_ >= busy; }
  // Bytes per second; 0: not measured.
  double best() const { return best_; }

 private:
  uint32_t operations_ = 0;
  Nanos last_end_ = 0, total_ = 0, batch_time_ = 0;
  uint64_t batch_bytes_ = 0;
  double best_ = 0;
};

// Rate of a train of frames that should have `total` bytes: bytes per second of its second half,
// when the connection has been made and its window has opened; if less arrives, of all but its
// first piece.
class TrainMeter {
 public:
  // Shorter times cannot be distinguished from the granularity at which a lane reads.
  static constexpr Nanos kLeastTime = 500 * kMicro;

  explicit TrainMeter(uint64_t total) : total_(total) {}

  void on_piece(uint64_t bytes, Nanos now) {
    if (first_ == kNever) {
      first_ = now;
    } else {
      since_first_ += bytes;
      if (middle_ != kNever) since_middle_ += bytes;
    }
    got_ += bytes;
    if (middle_ == kNever && got_ >= total_ / 2) middle_ = now;
    last_ = now;
  }
  uint64_t got() const { return got_; }
  // 0: too few bytes have arrived.
  double rate() const {
    const bool half = since_middle_ > 0;
    const Nanos time = std::max(kLeastTime, last_ - (half ? middle_ : first_));
    const uint64_t bytes = half ? since_middle_ : since_first_;
    return static_cast<double>(bytes) * kSecond / static_cast<double>(time);
  }

 private:
  uint64_t total_, got_ = 0, since_first_ = 0, since_middle_ = 0;
  Nanos first_ = kNever, middle_ = kNever, last_ = 0;
};

}  // namespace mcast
