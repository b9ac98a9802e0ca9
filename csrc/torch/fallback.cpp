// What the engine does not serve, handed to the fallback of the tensors' device.
#include "backend.h"
#include "gil.h"

namespace mcast::pg {
namespace {

bool is_gloo(const c10d::Backend& backend) { return backend.getBackendName() == "gloo"; }

const at::Tensor& first_of(const char* op, const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), op, ": expected at least 1 tensor, got none");
  TORCH_CHECK_VALUE(tensors[0].defined(), op, ": the first tensor is undefined");
  return tensors[0];
}

}  // namespace

void ProcessGroupMcast::set_fallback(const BackendPtr& fallback, const std::string& device) {
  TORCH_CHECK_VALUE(fallback && fallback->getRank() == rank_ && fallback->getSize() == size_,
                    "mcast: the fallback must have rank ", rank_, " of ", size_);
  std::lock_guard lock(mutex_);
  fallbacks_[c10::Device(device).type()] = fallback;
}

std::map<std::string, std::string> ProcessGroupMcast::fallback_names() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::string> names;
  for (const auto& [device, backend] : fallbacks_) {
    names[c10::DeviceTypeName(device, /*lower_case=*/true)] = backend->getBackendName();
  }
  return names;
}

c10d::Backend& ProcessGroupMcast::fallback(Op op, const at::Tensor& tensor) {
  check_here(op_name(op));
  std::lock_guard lock(mutex_);
  const auto found = fallbacks_.find(tensor.device().type());
  if (found == fallbacks_.end()) {
    C10_THROW_ERROR(NotImplementedError,
                    c10::str("mcast: ", op_name(op), " of ", tensor.device(),
                             " tensors is not served by the multicast engine, and group '", name_,
                             "' has no fallback backend for that device (Options(fallback=...))"));
  }
  calls_.fallback(op);
  return *found->second;
}

c10d::Backend& ProcessGroupMcast::fallback(Op op, const Tensors& tensors) {
  return fallback(op, first_of(op_name(op), tensors));
}

WorkPtr ProcessGroupMcast::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  c10d::Backend& backend = fallback(Op::all_reduce_sparse, tensors);
  ++sequence_;
  const WithoutGil nogil;
  // Gloo takes sparse tensors in its ordinary allreduce.
  return is_gloo(backend) ? backend.allreduce(tensors, opts)
                          : backend.allreduce_sparse(tensors, opts);
}

WorkPtr ProcessGroupMcast::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::GatherOptions& opts) {
  c10d::Backend& backend = fallback(Op::gather, inputs);
  ++sequence_;
  const WithoutGil nogil;
  return backend.gather(outputs, inputs, opts);
}

WorkPtr ProcessGroupMcast::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ScatterOptions& opts) {
  c10d::Backend& backend = fallback(Op::scatter, outputs);
  ++sequence_;
  const WithoutGil nogil;
  return backend.scatter(outputs, inputs, opts);
}

WorkPtr ProcessGroupMcast::alltoall(Tensors& outputs, Tensors& inputs,
                                    const c10d::AllToAllOptions& opts) {
  c10d::Backend& backend = fallback(Op::all_to_all, inputs);
  ++sequence_;
  const WithoutGil nogil;
  return backend.alltoall(outputs, inputs, opts);
}

WorkPtr ProcessGroupMcast::alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<int64_t>& output_splits,
                                         std::vector<int64_t>& input_splits,
                                         const c10d::AllToAllOptions& opts) {
  c10d::Backend& backend = fallback(Op::all_to_all_single, input);
  ++sequence_;
  const WithoutGil nogil;
  return backend.alltoall_base(output, input, output_splits, input_splits, opts);
}

// Point to point calls are not made by all ranks: they take no sequence number.
WorkPtr ProcessGroupMcast::send(Tensors& tensors, int destination, int tag) {
  c10d::Backend& backend = fallback(Op::send, tensors);
  const WithoutGil nogil;
  return backend.send(tensors, destination, tag);
}

WorkPtr ProcessGroupMcast::recv(Tensors& tensors, int source, int tag) {
  c10d::Backend& backend = fallback(Op::recv, tensors);
  const WithoutGil nogil;
  return backend.recv(tensors, source, tag);
}

WorkPtr ProcessGroupMcast::recvAnysource(Tensors& tensors, int tag) {
  c10d::Backend& backend = fallback(Op::recv_any_source, tensors);
  const WithoutGil nogil;
  return backend.recvAnysource(tensors, tag);
}

void ProcessGroupMcast::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  check_here(op_name(Op::monitored_barrier));
  BackendPtr backend;
  {
    std::lock_guard lock(mutex_);
    const auto found = fallbacks_.find(c10::DeviceType::CPU);
    TORCH_CHECK_NOT_IMPLEMENTED(found != fallbacks_.end(),
                                "mcast: monitored_barrier needs a CPU fallback backend");
    backend = found->second;
  }
  calls_.fallback(Op::monitored_barrier);
  ++sequence_;
  const WithoutGil nogil;
  backend->monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace mcast::pg
