// Records operations and their times: the last ones of a process, bounded, for timelines.
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

// Times of one operation, for callers that do not run the engine themselves. Filled in before its
// `done` runs.
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
  size_t next_ = 0;  // index of the oldest once the ring is full
};

}  // namespace mcast
