// torch's tools look for the event record_param_comms to find sizes, dtypes and groups of
// collectives; names are NCCL's, which the tools know.
#include "observer.h"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "background.h"
#include "base/log.h"

namespace mcast::pg {
namespace {

const char* profiler_name(Op op) {
  switch (op) {
    case Op::all_reduce:
    case Op::all_reduce_sparse:
      return "allreduce";
    case Op::all_reduce_coalesced:
      return "allreduce_coalesced";
    case Op::all_gather_into_tensor:
      return "_allgather_base";
    case Op::all_gather_into_tensor_coalesced:
      return "allgather_into_tensor_coalesced";
    case Op::reduce_scatter_tensor:
      return "_reduce_scatter_base";
    case Op::all_to_all_single:
      return "all_to_all";
    default:
      return op_name(op);
  }
}

int64_t elements(at::TensorList tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.defined() ? tensor.numel() : 0;
  return count;
}

}  // namespace

Observer::Observer(std::string group, int rank, int size, const std::vector<uint64_t>& global_ranks)
    : group_(std::move(group)) {
  move_to(rank, size, global_ranks);
}

void Observer::move_to(int rank, int size, const std::vector<uint64_t>& global_ranks) {
  size_ = size;
  first_ = 0;
  stride_ = 1;
  {
    const std::lock_guard lock(mutex_);
    place_ = std::make_shared<const FlightPlace>(FlightPlace{group_, "", rank});
  }
  if (global_ranks.empty()) return;
  first_ = static_cast<int>(global_ranks[0]);
  for (size_t i = 1; i < global_ranks.size(); ++i) {
    const int step = static_cast<int>(global_ranks[i]) - static_cast<int>(global_ranks[i - 1]);
    if (i > 1 && step != stride_) {
      stride_ = -1;  // as in NCCL: there is none
      return;
    }
    stride_ = step;
  }
}

void Observer::profile(const Told& told, const FlightPlace& place) const {
  const std::vector<at::Tensor> inputs = told.inputs.vec();
  std::vector<at::Tensor> outputs;
  for (const std::vector<at::Tensor>& list : told.outputs) {
    outputs.insert(outputs.end(), list.begin(), list.end());
  }
  const auto& typed = inputs.empty() ? outputs : inputs;
  const at::ScalarType dtype =
      typed.empty() || !typed[0].defined() ? at::kByte : typed[0].scalar_type();
  RECORD_PARAM_COMMS_DATA(std::make_tuple(static_cast<int64_t>(told.sequence), told.point_to_point),
                          std::make_tuple(place.group, place.description), inputs, outputs,
                          place.rank, profiler_name(told.op), elements(inputs), elements(outputs),
                          dtype, std::vector<int64_t>(), std::vector<int64_t>(), first_, stride_,
                          size_);
}

std::shared_ptr<const FlightPlace> Observer::place(const std::string& description) {
  const std::lock_guard lock(mutex_);
  if (place_->description != description) {
    FlightPlace changed = *place_;
    changed.description = description;
    place_ = std::make_shared<const FlightPlace>(std::move(changed));
  }
  return place_;
}

std::shared_ptr<Observer::Flight> Observer::begin(const Told& told,
                                                  const std::string& description) {
  auto where = place(description);
  if (at::hasCallbacks()) profile(told, *where);
  auto flight = std::make_shared<Flight>();
  flight->observer_ = shared_from_this();
  flight->type_ = told.type;
  FlightEntry& entry = flight->entry_;
  entry.sequence = told.sequence;
  FlightRecorder& recorder = FlightRecorder::instance();
  if (recorder.enabled()) {
    entry.place = std::move(where);
    entry.op = told.op;
    entry.peer.store(told.peer);
    entry.op_id = ++op_id_;
    entry.point_to_point = told.point_to_point;
    for (const at::Tensor& tensor : told.inputs) entry.inputs.add(tensor);
    for (const std::vector<at::Tensor>& list : told.outputs) {
      for (const at::Tensor& tensor : list) entry.outputs.add(tensor);
    }
    entry.timeout_ms = told.timeout.count();
    recorder.add(FlightPtr(flight, &entry));
  }
  {
    const std::lock_guard lock(mutex_);
    in_flight_++;
  }
  flight->begin_ = std::chrono::steady_clock::now();
  return flight;
}

void Observer::Flight::end(bool ok) {
  end_ = std::chrono::steady_clock::now();
  over_.store(true, std::memory_order_release);
  if (entry_.place) FlightRecorder::end(entry_, ok);
}

// The recorder keeps this for long, so it must not keep the observer, and with it a user's hook,
// alive.
void Observer::Flight::tell() {
  const auto observer = std::move(observer_);
  if (observer->ended_unseen()) return;
  observer->ended(std::make_shared<c10d::WorkInfo>(type_, entry_.sequence, begin_, end_,
                                                   std::chrono::duration<float>(end_ - begin_)));
}

void Observer::Flight::abandon() {
  const auto observer = std::move(observer_);
  const std::lock_guard lock(observer->mutex_);
  if (--observer->in_flight_ == 0) observer->idle_.notify_all();
}

float Observer::Flight::milliseconds() const {
  return std::chrono::duration<float, std::milli>(end_ - begin_).count();
}

bool Observer::ended_unseen() {
  const std::lock_guard lock(mutex_);
  if (hook_) return false;
  if (--in_flight_ == 0) idle_.notify_all();
  return true;
}

void Observer::ended(std::shared_ptr<c10d::WorkInfo> info) {
  Background::instance().run("a completion hook", [held = shared_from_this(), info] {
    try {
      held->hook_(info);
    } catch (const std::exception& error) {
      log(LogLevel::kError, "a completion hook of group '%s' failed: %s", held->group_.c_str(),
          error.what());
    }
    const std::lock_guard last(held->mutex_);
    if (--held->in_flight_ == 0) held->idle_.notify_all();
  });
}

void Observer::set_hook(Hook hook) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!hook_, "mcast: the group has a completion hook already");
  hook_ = std::move(hook);
}

void Observer::wait_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return in_flight_ == 0; });
}

}  // namespace mcast::pg
