// A queue of bounded length. The text of an entry is made when it is requested. After fork() the
// child begins with an empty queue.
#include "flight.h"

#include <c10/util/ApproximateClock.h>
#include <pthread.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdlib>

#include "background.h"
#include "gil.h"

namespace mcast::pg {
namespace {

constexpr long kMostEntries = 2000;  // torch's default

size_t buffer_size() {
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr || *text == '\0') continue;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end == '\0' && value >= 0) return static_cast<size_t>(value);
  }
  return kMostEntries;
}

// Analysers sort the entries of several hosts by it.
int64_t wall_clock() { return c10::getTimeSinceEpoch(); }

std::function<void()>& timeout_action() {
  static auto* const action = new std::function<void()>;  // lanes may call it at exit
  return *action;
}

}  // namespace

void FlightShapes::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const at::IntArrayRef sizes = tensor.sizes();
  numbers_.push_back(static_cast<int64_t>(tensor.scalar_type()));
  numbers_.push_back(static_cast<int64_t>(sizes.size()));
  numbers_.append(sizes.begin(), sizes.end());
}

std::vector<std::vector<int64_t>> FlightShapes::sizes() const {
  std::vector<std::vector<int64_t>> all;
  for (const int64_t* at = numbers_.begin(); at != numbers_.end(); at += 2 + at[1]) {
    all.emplace_back(at + 2, at + 2 + at[1]);
  }
  return all;
}

std::vector<at::ScalarType> FlightShapes::types() const {
  std::vector<at::ScalarType> all;
  for (const int64_t* at = numbers_.begin(); at != numbers_.end(); at += 2 + at[1]) {
    all.push_back(static_cast<at::ScalarType>(at[0]));
  }
  return all;
}

std::string FlightEntry::name() const {
  const std::string other = std::to_string(peer.load());
  switch (op) {
    case Op::all_gather_into_tensor:
      return "_all_gather_base";
    case Op::reduce_scatter_tensor:
      return "_reduce_scatter_base";
    case Op::all_reduce_coalesced:
      return "allreduce_coalesced";
    case Op::all_gather_coalesced:
      return "ALLGATHER_coalesced";
    case Op::all_reduce_sparse:
      return "all_reduce";
    case Op::send:
      return "send " + std::to_string(place->rank) + "->" + other;
    case Op::recv:
    case Op::recv_any_source:
      return "recv " + std::to_string(place->rank) + "<-" + other;
    default:
      return op_name(op);
  }
}

void FlightRecorder::on_failure(std::function<void()> action) {
  timeout_action() = std::move(action);
}

void FlightRecorder::failed() {
  static std::atomic<bool> pending{false};  // many groups fail at the same time
  if (!timeout_action() || pending.exchange(true)) return;
  Background::instance().run("the dump of the flight recorder", [] {
    pending.store(false);
    timeout_action()();
  });
}

void FlightRecorder::dump(std::function<void()> done) {
  Background::instance().run("the dump of the flight recorder", [done = std::move(done)] {
    if (timeout_action()) timeout_action()();
    done();
  });
}

FlightRecorder::FlightRecorder() : most_(buffer_size()) {}

FlightRecorder& FlightRecorder::instance() {
  static FlightRecorder* recorder = [] {
    pthread_atfork(nullptr, nullptr, [] { recorder = new FlightRecorder; });
    return new FlightRecorder;
  }();
  return *recorder;
}

void FlightRecorder::add(const FlightPtr& entry) {
  entry->created_ns = wall_clock();
  // Records code objects and positions only: lines are looked up when the entries are requested.
  stay_if_leaving();
  entry->stack = torch::CapturedTraceback::gather(true, false, false);
  const std::lock_guard lock(mutex_);
  entry->id = next_++;
  entries_.push_back(entry);
  if (entries_.size() > most_) entries_.pop_front();
}

void FlightRecorder::end(FlightEntry& entry, bool ok) {
  entry.failed.store(!ok);
  entry.ended_ns.store(wall_clock());
}

std::vector<FlightPtr> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

}  // namespace mcast::pg
