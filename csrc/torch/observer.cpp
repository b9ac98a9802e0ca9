// record_param_comms is the event in which torch's tools look for sizes, dtypes and groups of
// collectives; names are NCCL's, which they know.
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

std::string recorder_name(const Told& told, int rank) {
  const std::string peer = told.peer < 0 ? "" : std::to_string(told.peer);
  switch (told.op) {
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
      return "send " + std::to_string(rank) + "->" + peer;
    case Op::recv:
      return "recv " + std::to_string(rank) + "<-" + peer;
    default:
      return op_name(told.op);
  }
}

int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.defined() ? tensor.numel() : 0;
  return count;
}

void describe(const std::vector<at::Tensor>& tensors, std::vector<std::vector<int64_t>>& sizes,
              std::vector<at::ScalarType>& types) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    sizes.push_back(tensor.sizes().vec());
    types.push_back(tensor.scalar_type());
  }
}

}  // namespace

Observer::Observer(std::string group, int rank, int size, const std::vector<uint64_t>& global_ranks)
    : group_(std::move(group)), rank_(rank), size_(size) {
  if (global_ranks.empty()) return;
  first_ = static_cast<int>(global_ranks[0]);
  for (size_t i = 1; i < global_ranks.size(); ++i) {
    const int step = static_cast<int>(global_ranks[i]) - static_cast<int>(global_ranks[i - 1]);
    if (i > 1 && step != stride_) {
      stride_ = -1;  // as NCCL says: there is none
      return;
    }
    stride_ = step;
  }
}

void Observer::profile(const Told& told, const std::string& description) const {
  if (!at::hasCallbacks()) return;
  const auto& typed = told.inputs.empty() ? told.outputs : told.inputs;
  const at::ScalarType dtype =
      typed.empty() || !typed[0].defined() ? at::kByte : typed[0].scalar_type();
  RECORD_PARAM_COMMS_DATA(std::make_tuple(static_cast<int64_t>(told.sequence), told.point_to_point),
                          std::make_tuple(group_, description), told.inputs, told.outputs, rank_,
                          profiler_name(told.op), elements(told.inputs), elements(told.outputs),
                          dtype, std::vector<int64_t>(), std::vector<int64_t>(), first_, stride_,
                          size_);
}

std::shared_ptr<Observer::Flight> Observer::begin(const Told& told,
                                                  const std::string& description) {
  profile(told, description);
  auto flight = std::make_shared<Flight>();
  flight->observer_ = shared_from_this();
  flight->type_ = told.type;
  flight->sequence_ = told.sequence;
  FlightRecorder& recorder = FlightRecorder::instance();
  if (recorder.enabled()) {
    auto entry = std::make_shared<FlightEntry>();
    entry->group = group_;
    entry->description = description;
    entry->sequence = told.sequence;
    entry->point_to_point = told.point_to_point;
    entry->name = recorder_name(told, rank_);
    describe(told.inputs, entry->input_sizes, entry->input_types);
    describe(told.outputs, entry->output_sizes, entry->output_types);
    entry->timeout_ms = told.timeout.count();
    recorder.add(entry);
    flight->entry_ = std::move(entry);
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
  if (entry_) FlightRecorder::end(*entry_, ok);
}

void Observer::Flight::tell() {
  observer_->ended(std::make_shared<c10d::WorkInfo>(type_, sequence_, begin_, end_,
                                                    std::chrono::duration<float>(end_ - begin_)));
}

void Observer::Flight::abandon() {
  const std::lock_guard lock(observer_->mutex_);
  if (--observer_->in_flight_ == 0) observer_->idle_.notify_all();
}

float Observer::Flight::milliseconds() const {
  return std::chrono::duration<float, std::milli>(end_ - begin_).count();
}

void Observer::ended(std::shared_ptr<c10d::WorkInfo> info) {
  std::unique_lock lock(mutex_);
  if (!hook_) {
    in_flight_--;
    if (in_flight_ == 0) idle_.notify_all();
    return;
  }
  lock.unlock();
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
