// What the engine does not serve, handed to the fallback of the tensors' device. Works of the
// fallback are returned as they are, with two exceptions on Gloo and CPU tensors:
//
// reduce_scatter. Gloo makes it an all-reduce of a copy whose Work never becomes complete before
// wait() and has no future. The same all-reduce is posted here, with a Work that has both; the
// bytes sent are the same.
//
// PREMUL_SUM. Gloo refuses it; the factor is applied to the input, then SUM.
#include <ATen/core/ivalue.h>

#include <memory>

#include "backend.h"
#include "background.h"
#include "gil.h"

namespace mcast::pg {
namespace {

bool is_premul(const c10d::ReduceOp& op) { return op.op_ == c10d::ReduceOp::PREMUL_SUM; }

bool is_gloo(const c10d::Backend& backend) { return backend.getBackendName() == "gloo"; }

// input * factor, in the input's dtype.
at::Tensor premultiplied(const at::Tensor& input, const c10d::ReduceOp& op) {
  TORCH_CHECK_VALUE(op.supplement_.defined(), "PREMUL_SUM: the operation has no factor");
  // Header-only type: its RTTI is not shared between libraries, the op's code says what it is.
  const auto& factor = *static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  const at::Tensor product = factor.tensor_factor.defined()
                                 ? at::mul(input, factor.tensor_factor.to(input.device()))
                                 : at::mul(input, factor.double_factor);
  return product.to(input.scalar_type());
}

template <typename Opts>
Opts with_sum(Opts opts) {
  opts.reduceOp = c10d::ReduceOp(c10d::ReduceOp::SUM);
  return opts;
}

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
  if (!here()) {
    throw_status(Status(Code::kClosed, c10::str(op_name(op), ": group '", name_,
                                                "' belongs to the parent process; make a new group "
                                                "after fork")),
                 context(op_name(op), sequence_));
  }
  std::lock_guard lock(mutex_);
  const auto found = fallbacks_.find(tensor.device().type());
  if (found == fallbacks_.end()) {
    C10_THROW_ERROR(NotImplementedError,
                    c10::str("mcast: ", op_name(op), " of ", tensor.device(),
                             " tensors is not served by the multicast engine, and group '", name_,
                             "' has no fallback backend for that device (Options(fallback=...))"));
  }
  tallies_.fallback(op);
  return *found->second;
}

c10d::Backend& ProcessGroupMcast::fallback(Op op, const Tensors& tensors) {
  return fallback(op, first_of(op_name(op), tensors));
}

WorkPtr ProcessGroupMcast::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  c10d::Backend& backend = fallback(Op::all_reduce, tensors);
  ++sequence_;
  const WithoutGil nogil;
  if (!is_premul(opts.reduceOp) || !is_gloo(backend)) return backend.allreduce(tensors, opts);
  for (auto& tensor : tensors) tensor.copy_(premultiplied(tensor, opts.reduceOp));
  return backend.allreduce(tensors, with_sum(opts));
}

WorkPtr ProcessGroupMcast::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  c10d::Backend& backend = fallback(Op::all_reduce_sparse, tensors);
  ++sequence_;
  const WithoutGil nogil;
  // Gloo takes sparse tensors in its ordinary allreduce.
  return is_gloo(backend) ? backend.allreduce(tensors, opts)
                          : backend.allreduce_sparse(tensors, opts);
}

WorkPtr ProcessGroupMcast::allreduce_coalesced(Tensors& tensors,
                                               const c10d::AllreduceCoalescedOptions& opts) {
  c10d::Backend& backend = fallback(Op::all_reduce_coalesced, tensors);
  ++sequence_;
  const WithoutGil nogil;
  if (!is_premul(opts.reduceOp) || !is_gloo(backend)) {
    return backend.allreduce_coalesced(tensors, opts);
  }
  for (auto& tensor : tensors) tensor.copy_(premultiplied(tensor, opts.reduceOp));
  return backend.allreduce_coalesced(tensors, with_sum(opts));
}

WorkPtr ProcessGroupMcast::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  c10d::Backend& backend = fallback(Op::reduce, tensors);
  ++sequence_;
  const WithoutGil nogil;
  if (!is_premul(opts.reduceOp) || !is_gloo(backend)) return backend.reduce(tensors, opts);
  if (opts.rootRank == rank_) {
    for (auto& tensor : tensors) tensor.copy_(premultiplied(tensor, opts.reduceOp));
    return backend.reduce(tensors, with_sum(opts));
  }
  Tensors scaled;  // the tensors of other ranks are inputs only
  for (const auto& tensor : tensors) scaled.push_back(premultiplied(tensor, opts.reduceOp));
  return backend.reduce(scaled, with_sum(opts));
}

namespace {

// The last step of one reduce-scatter, on the fallback's thread.
struct Step {
  c10::intrusive_ptr<McastWork> work;
  at::Tensor flat;
  at::Tensor output;
  int rank;

  void finish(c10::ivalue::Future& done) {
    std::exception_ptr error;
    try {
      if (done.hasError()) std::rethrow_exception(done.exception_ptr());
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      output.copy_(flat.narrow(0, rank * output.numel(), output.numel()).view(output.sizes()));
    } catch (...) {
      error = std::current_exception();
    }
    work->end_part(error);
    // The callback may outlive this call; what belongs to Python must not wait for its end.
    dispose(std::move(work));
    dispose_later(std::move(output));
    flat = at::Tensor();
  }
};

}  // namespace

// flats[i] holds size() blocks, each with as many elements as outputs[i]; this call owns it.
WorkPtr ProcessGroupMcast::reduce_scatter_by_allreduce(Op op, c10d::OpType type, Tensors outputs,
                                                       const Tensors& flats,
                                                       const c10d::ReduceScatterOptions& opts) {
  auto work = make_work(op, type, "mcast:reduce_scatter", {}, {outputs},
                        std::max(1, static_cast<int>(flats.size())), nullptr);
  if (flats.empty()) {
    work->end_part(nullptr);
    return work;
  }
  c10d::Backend& backend = fallback(op, flats);
  c10d::AllreduceOptions reduce_opts;
  reduce_opts.reduceOp =
      is_premul(opts.reduceOp) ? c10d::ReduceOp(c10d::ReduceOp::SUM) : opts.reduceOp;
  reduce_opts.timeout = opts.timeout;
  reduce_opts.asyncOp = opts.asyncOp;
  for (size_t i = 0; i < flats.size(); ++i) {
    Tensors reduced{flats[i]};
    const auto future = backend.allreduce(reduced, reduce_opts)->getFuture();
    auto step = std::make_shared<Step>(Step{work, flats[i], outputs[i], rank_});
    future->addCallback([step](c10::ivalue::Future& done) { step->finish(done); });
  }
  return work;
}

namespace {

// A flat copy of `input` that may be reduced in place.
at::Tensor scratch(const at::Tensor& input, const c10d::ReduceOp& op) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (is_premul(op)) return premultiplied(input, op).contiguous().view({-1});
  return input.clone(at::MemoryFormat::Contiguous).view({-1});
}

void check_scatter(const char* op, const at::Tensor& output, const at::Tensor& input, int size) {
  check_dense(op, "input", input);
  check_like(op, "output", output, input);
  TORCH_CHECK_VALUE(output.numel() * size == input.numel(), op, ": expected an input of ", size,
                    " x ", output.numel(), " = ", output.numel() * size, " elements, got ",
                    input.numel());
}

}  // namespace

WorkPtr ProcessGroupMcast::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ReduceScatterOptions& opts) {
  constexpr const char* name = "reduce_scatter";
  const at::Tensor& output = check_single(name, "output", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, name, ": expected 1 list of inputs, got ", inputs.size());
  TORCH_CHECK_VALUE(inputs[0].size() == static_cast<size_t>(size_), name, ": expected ", size_,
                    " input tensors, one per rank, got ", inputs[0].size());
  for (size_t i = 0; i < inputs[0].size(); ++i) {
    const std::string what = "input " + std::to_string(i);
    check_like(name, what, inputs[0][i], output);
    TORCH_CHECK_VALUE(inputs[0][i].sizes() == output.sizes(), name, ": ", what, " must have shape ",
                      output.sizes(), ", got ", inputs[0][i].sizes());
  }
  const WithoutGil nogil;
  if (!output.device().is_cpu()) {
    ++sequence_;
    return fallback(Op::reduce_scatter, output).reduce_scatter(outputs, inputs, opts);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensors pieces;
  for (const auto& input : inputs[0]) pieces.push_back(input.reshape({-1}));
  const at::Tensor flat = at::cat(pieces);
  return reduce_scatter_by_allreduce(
      Op::reduce_scatter, c10d::OpType::REDUCE_SCATTER, outputs,
      {is_premul(opts.reduceOp) ? premultiplied(flat, opts.reduceOp) : flat}, opts);
}

WorkPtr ProcessGroupMcast::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  check_scatter("reduce_scatter_tensor", output, input, size_);
  const WithoutGil nogil;
  if (!output.device().is_cpu()) {
    ++sequence_;
    return fallback(Op::reduce_scatter_tensor, output)._reduce_scatter_base(output, input, opts);
  }
  return reduce_scatter_by_allreduce(Op::reduce_scatter_tensor, c10d::OpType::_REDUCE_SCATTER_BASE,
                                     {output}, {scratch(input, opts.reduceOp)}, opts);
}

WorkPtr ProcessGroupMcast::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  constexpr Op op = Op::reduce_scatter_tensor_coalesced;
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), op_name(op), ": expected as many outputs as ",
                    "inputs (", inputs.size(), "), got ", outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_scatter(op_name(op), outputs[i], inputs[i], size_);
  }
  const WithoutGil nogil;
  if (!inputs.empty() && !inputs[0].device().is_cpu()) {
    ++sequence_;
    return fallback(op, inputs).reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  Tensors flats;
  for (const auto& input : inputs) flats.push_back(scratch(input, opts.reduceOp));
  return reduce_scatter_by_allreduce(op, c10d::OpType::COALESCED, outputs, flats, opts);
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
  BackendPtr backend;
  {
    std::lock_guard lock(mutex_);
    const auto found = fallbacks_.find(c10::DeviceType::CPU);
    TORCH_CHECK_NOT_IMPLEMENTED(found != fallbacks_.end(),
                                "mcast: monitored_barrier needs a CPU fallback backend");
    backend = found->second;
  }
  tallies_.fallback(Op::monitored_barrier);
  ++sequence_;
  const WithoutGil nogil;
  backend->monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace mcast::pg
