// What operations did and when: a bounded record of the last ones of a process, for timelines.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcast {

// Times are of the monotonic clock; kNever: did not happen.
struct TraceEvent {
  std::string name;  // "reduce_scatter_tensor"
  std::string group;
  Member rank = 0;
  uint8_t lane = 0;  // 0 multicast, 1 reduce
  uint32_t sequence = 0;
  uint64_t bytes = 0;
  Nanos posted = 0, first_byte = kNever, last_byte = kNever, done = 0;
  bool ok = false;
};

// Of one operation, for who only posts it. Written before its `done`.
struct Moments {
  Nanos first_byte = kNever, last_byte = kNever, done = 0;
};

// Any thread. Keeps the newest `capacity` events.
class Trace {
 public:
  explicit Trace(size_t capacity) : capacity_(capacity) {}
  void record(TraceEvent event);
  // Oldest first.
  std::vector<TraceEvent> events() const;

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<TraceEvent> ring_;
  size_t next_ = 0;  // where the oldest is once the ring is full
};

}  // namespace mcast
