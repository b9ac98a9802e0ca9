// Lists whose tensors differ in size, as c10d allows them for all_gather and reduce_scatter. The
// engine's operations have blocks of one size, so such a call is one broadcast, or one reduce, per
// rank, all of them in flight at once. Every rank sees the same list of sizes, and so takes this
// way or not.
#include <ATen/EmptyTensor.h>

#include "backend.h"
#include "gil.h"
#include "reducing.h"

namespace mcast::pg {
namespace {

constexpr const char* kTitleUnevenGather = "mcast:all_gather";
constexpr const char* kTitleUnevenScatter = "mcast:reduce_scatter";

uint64_t bytes_of_all(const Tensors& tensors) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* const first = static_cast<const std::byte*>(a.const_data_ptr());
  const auto* const other = static_cast<const std::byte*>(b.const_data_ptr());
  return first < other + b.nbytes() && other < first + a.nbytes();
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides();
}

// The own block, where the caller expects it.
void copy_own(const at::Tensor& input, const at::Tensor& output) {
  if (same_memory(input, output)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  output.copy_(input);
}

}  // namespace

WorkPtr ProcessGroupMcast::gather_uneven(const Tensors& outputs, const at::Tensor& input,
                                         const CallOptions& call) {
  constexpr Op op = Op::all_gather;
  const char* const name = op_name(op);
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), name, ": expected ", size_,
                    " output tensors, one per rank, got ", outputs.size());
  const auto own = static_cast<size_t>(rank_);
  for (size_t r = 0; r < outputs.size(); ++r) {
    check_like(name, "output " + std::to_string(r), outputs[r], input);
  }
  TORCH_CHECK_VALUE(outputs[own].sizes() == input.sizes(), name, ": output ", own,
                    " must have shape ", input.sizes(), ", got ", outputs[own].sizes());
  const WithoutGil nogil;
  auto back = std::make_shared<CopyBacks>();
  if (!input.device().is_cpu()) {
    devices_.check(op, input.device());
    const bool in_place = same_memory(input, outputs[own]);
    const at::Tensor source = !in_place && overlap(input, outputs[own]) ? input.clone() : input;
    std::vector<DevicePlan> transfers;
    for (size_t r = 0; r < outputs.size(); ++r) {
      const at::Tensor& tensor = r == own ? source : outputs[r];
      transfers.push_back(plan_broadcast(tensor, static_cast<Member>(r), r == own, *back));
    }
    auto work = post_device(op, c10d::OpType::ALLGATHER, kTitleUnevenGather, std::move(transfers),
                            {input}, {outputs}, back, call.timeout);
    copy_own(source, outputs[own]);
    return work;
  }
  const auto engine_group = group(name);
  const Tensors targets = writable_apart(outputs, *back);
  at::Tensor source = readable(input);
  for (size_t r = 0; r < targets.size(); ++r) {
    if (r == own && same_memory(source, targets[r])) continue;
    if (overlap(source, targets[r])) source = source.clone();  // what arrives would change it
  }
  copy_own(source, targets[own]);
  auto work =
      make_work(op, c10d::OpType::ALLGATHER, kTitleUnevenGather, {input}, {outputs}, size_, back);
  for (size_t r = 0; r < outputs.size(); ++r) {
    Regions regions;
    auto posted = engine_group->post_broadcast(regions.slice(r == own ? source : targets[r]),
                                               static_cast<Member>(r),
                                               post_options(op, *work, call, input.scalar_type()));
    if (!posted.ok()) throw_status(posted.status(), context(name, sequence_));
  }
  return served(op, bytes_of_all(outputs), work);
}

WorkPtr ProcessGroupMcast::scatter_uneven(const at::Tensor& output, const Tensors& inputs,
                                          const c10d::ReduceOp& reduce, const CallOptions& call) {
  constexpr Op op = Op::reduce_scatter;
  const char* const name = op_name(op);
  const auto own = static_cast<size_t>(rank_);
  const Reducing how = reducing(name, output.scalar_type(), reduce);
  const WithoutGil nogil;
  auto back = std::make_shared<CopyBacks>();
  if (!output.device().is_cpu()) {
    devices_.check(op, output.device());
    std::vector<DevicePlan> transfers;
    for (size_t r = 0; r < inputs.size(); ++r) {
      at::Tensor tensor = inputs[r];
      if (r == own) {  // the reduction takes its place
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        tensor = tensor.clone(at::MemoryFormat::Contiguous);
        back->add(tensor, output);
      }
      transfers.push_back(plan_reduce(tensor, static_cast<Member>(r), how, rank_, size_, *back));
    }
    if (integer_average(output.scalar_type(), reduce)) back->divide(output);
    return post_device(op, c10d::OpType::REDUCE_SCATTER, kTitleUnevenScatter, std::move(transfers),
                       inputs, {{output}}, back, call.timeout);
  }
  const auto engine_group = group(name);
  // The output may share memory with inputs of other ranks that are still to be sent.
  const at::Tensor result =
      at::empty(output.sizes(),
                output.options().memory_format(at::MemoryFormat::Contiguous).requires_grad(false));
  back->add(result, output);
  if (integer_average(output.scalar_type(), reduce)) back->divide(output);
  auto work = make_work(op, c10d::OpType::REDUCE_SCATTER, kTitleUnevenScatter, inputs, {{output}},
                        size_, back);
  for (size_t r = 0; r < inputs.size(); ++r) {
    Regions regions;
    Slice to = r == own ? regions.slice(result) : Slice();
    auto posted = engine_group->post_reduce(regions.slice(readable(inputs[r])), std::move(to),
                                            static_cast<Member>(r), how,
                                            post_options(op, *work, call, output.scalar_type()));
    if (!posted.ok()) throw_status(posted.status(), context(name, sequence_));
  }
  return served(op, output.nbytes(), work);
}

}  // namespace mcast::pg
