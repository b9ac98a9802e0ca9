// The flight recorder: the last operations of this process and whether they are over, in the terms
// of torch's own (torch.distributed.flight_recorder), whose instance in libtorch is not accessible
// to other code. torch_mcast.flight_recorder() shows it in that format.
//
// TORCH_FR_BUFFER_SIZE (or TORCH_NCCL_TRACE_BUFFER_SIZE): number of entries, default 2000; 0: none.
//
// Threads: any. Errors: none.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "call_statistics.h"

namespace torch {
struct CapturedTraceback;
}

namespace mcast::pg {

// Sizes and dtypes of tensors, stored in place for the most common calls: thousands of entries are
// made while the last ones are kept, and memory that has left the cache costs more than everything
// else here.
class FlightShapes {
 public:
  void add(const at::Tensor& tensor);  // has no effect if it is undefined
  std::vector<std::vector<int64_t>> sizes() const;
  std::vector<at::ScalarType> types() const;

 private:
  c10::SmallVector<int64_t, 6> numbers_;  // per tensor: dtype, number of dimensions, dimensions
};

struct FlightPlace {
  std::string group, description;
  int rank = 0;
};

struct FlightEntry {
  uint64_t id = 0;  // assigned by add()
  std::shared_ptr<const FlightPlace> place;
  uint64_t sequence = 0;  // of the group's collectives; point to point: of its messages
  uint64_t op_id = 0;     // of the group: collectives and messages
  Op op = Op::barrier;
  bool point_to_point = false;
  std::atomic<int> peer{-1};  // of a send or receive; -1: any, as long as no message has come
  FlightShapes inputs, outputs;
  int64_t timeout_ms = 0;
  int64_t created_ns = 0;  // nanoseconds since 1970
  std::atomic<int64_t> ended_ns{0};
  std::atomic<bool> failed{false};
  std::shared_ptr<torch::CapturedTraceback> stack;  // of the call; null if none was taken

  std::string name() const;  // in the form of torch's recorder: "all_reduce", "send 0->1"
};
using FlightPtr = std::shared_ptr<FlightEntry>;

class FlightRecorder {
 public:
  static FlightRecorder& instance();
  bool enabled() const { return most_ > 0; }
  // Takes the caller's stack, for which it needs Python's lock for a moment: call without any lock
  // of this library.
  void add(const FlightPtr& entry);
  static void end(FlightEntry& entry, bool ok);
  std::vector<FlightPtr> entries() const;  // oldest first

  // Sets the action that runs, on a thread of its own, when a group has failed.
  static void on_failure(std::function<void()> action);
  static void failed();
  // Runs the same action now, after the completion hooks of operations that have ended; then calls
  // `done`.
  static void dump(std::function<void()> done);

 private:
  FlightRecorder();
  const size_t most_;
  mutable std::mutex mutex_;  // guards the rest
  std::deque<FlightPtr> entries_;
  uint64_t next_ = 0;
};

}  // namespace mcast::pg
