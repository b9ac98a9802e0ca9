// Attributes heap bytes to the rank that is being driven: implemented by the program
// (csrc/sim/heap_meter.cpp), optional in tests. Threads: one.
#pragma once

#include <cstdint>

namespace mcast::sim {

class HeapMeter {
 public:
  static constexpr uint32_t kNobody = UINT32_MAX;

  virtual ~HeapMeter() = default;
  // From now on allocations belong to this rank, until they are freed by any rank. Returns the rank
  // to which they belonged before.
  virtual uint32_t drive(uint32_t rank) = 0;
  // Bytes of a rank: now, and the peak since reset_peaks().
  virtual uint64_t held(uint32_t rank) const = 0;
  virtual uint64_t peak(uint32_t rank) const = 0;
  virtual void reset_peaks() = 0;
};

// Attributes allocations to a rank while the object lives.
class Driving {
 public:
  explicit Driving(HeapMeter* meter, uint32_t rank = HeapMeter::kNobody)
      : meter_(meter), before_(meter == nullptr ? rank : meter->drive(rank)) {}
  ~Driving() {
    if (meter_ != nullptr) (void)meter_->drive(before_);
  }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

 private:
  HeapMeter* const meter_;
  const uint32_t before_;
};

}  // namespace mcast::sim
