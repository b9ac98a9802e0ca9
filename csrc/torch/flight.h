// The flight recorder: what the last operations of this process were and whether they are over, in
// the terms of torch's own (torch.distributed.flight_recorder), whose instance in libtorch others
// cannot reach. torch_mcast.flight_recorder() shows it in that format.
//
// TORCH_FR_BUFFER_SIZE (or TORCH_NCCL_TRACE_BUFFER_SIZE): how many, 2000; 0: none.
//
// Threads: any. Errors: none.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mcast::pg {

struct FlightEntry {
  uint64_t id = 0;  // given by add()
  std::string group, description;
  uint64_t sequence = 0;  // of the group; point to point: of its sends and receives
  bool point_to_point = false;
  std::string name;  // "all_reduce", "send 0->1"
  std::vector<std::vector<int64_t>> input_sizes, output_sizes;
  std::vector<at::ScalarType> input_types, output_types;
  int64_t timeout_ms = 0;
  int64_t created_ns = 0;  // since 1970
  std::atomic<int64_t> ended_ns{0};
  std::atomic<bool> failed{false};
};
using FlightPtr = std::shared_ptr<FlightEntry>;

class FlightRecorder {
 public:
  static FlightRecorder& instance();
  bool enabled() const { return most_ > 0; }
  void add(const FlightPtr& entry);
  static void end(FlightEntry& entry, bool ok);
  std::vector<FlightPtr> entries() const;  // oldest first

  // What to do, on a thread of its own, when operations have timed out.
  static void on_timeout(std::function<void()> action);
  static void timed_out();

 private:
  FlightRecorder();
  const size_t most_;
  mutable std::mutex mutex_;  // guards the rest
  std::deque<FlightPtr> entries_;
  uint64_t next_ = 0;
};

}  // namespace mcast::pg
