// gather, scatter, all_to_all and all_to_all_single: of CPU tensors by the engine, of others by the
// fallback. Every call becomes a slice for each rank, of what goes there and of what comes from
// there. An input that shares bytes with what arrives is copied first; outputs that overlap each
// other get memory of their own and are copied in rank order at the end, as Gloo does.
#include <algorithm>

#include "backend.h"
#include "gil.h"

namespace mcast::pg {
namespace {

const char* title_of(Op op) {
  switch (op) {
    case Op::gather:
      return "mcast:gather";
    case Op::scatter:
      return "mcast:scatter";
    default:
      return "mcast:all_to_all";
  }
}

// Whether one of the inputs shares bytes with an output, but rank `own`'s with itself.
bool any_shared(const std::vector<Slice>& inputs, const std::vector<Slice>& outputs, size_t own) {
  std::vector<Slice> sorted;
  for (const Slice& output : outputs) {
    if (output.length > 0) sorted.push_back(output);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Slice& a, const Slice& b) { return a.data() < b.data(); });
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Slice& input = inputs[i];
    if (input.length == 0) continue;
    // The first output that ends behind the input's start. (They do not overlap each other.)
    const auto at = std::partition_point(sorted.begin(), sorted.end(), [&](const Slice& output) {
      return output.data() + output.length <= input.data();
    });
    if (at == sorted.end() || !overlap(input, *at)) continue;
    if (i != own || !same(*at, input)) return true;
  }
  return false;
}

void check_root(const char* op, int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, op, ": expected a root rank from 0 to ", size - 1,
                    ", got ", root);
}

// One tensor for each rank, as `like`.
void check_list(const char* op, const char* what, const Tensors& list, const at::Tensor& like,
                int size, bool same_shape) {
  TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size), op, ": expected ", size, " ", what,
                    " tensors, one per rank, got ", list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = std::string(what) + " " + std::to_string(i);
    check_like(op, name, list[i], like);
    TORCH_CHECK_VALUE(!same_shape || list[i].sizes() == like.sizes(), op, ": ", name,
                      " must have shape ", like.sizes(), ", got ", list[i].sizes());
  }
}

// Bytes of the rows of a tensor that belong to each rank.
std::vector<size_t> row_bytes(const char* what, const at::Tensor& tensor,
                              const std::vector<int64_t>& splits, int size) {
  const char* const op = op_name(Op::all_to_all_single);
  TORCH_CHECK_VALUE(tensor.dim() > 0, op, ": the ", what, " must have at least one dimension");
  const int64_t rows = tensor.size(0);
  const size_t row = rows > 0 ? tensor.nbytes() / static_cast<size_t>(rows) : 0;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, op, ": without split sizes the first dimension of the ",
                      what, " must be a multiple of ", size, ", got ", rows);
    return std::vector<size_t>(static_cast<size_t>(size), row * static_cast<size_t>(rows / size));
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size), op, ": expected ", size, " ", what,
                    " split sizes, one per rank, got ", splits.size());
  std::vector<size_t> bytes;
  int64_t left = rows;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0 && split <= left, op, ": the ", what, " split sizes ", splits,
                      " do not fit a first dimension of ", rows);
    left -= split;
    bytes.push_back(row * static_cast<size_t>(split));
  }
  TORCH_CHECK_VALUE(left == 0, op, ": the ", what, " split sizes ", splits, " must add up to the ",
                    "first dimension, ", rows);
  return bytes;
}

std::vector<Slice> slices_of(Regions& regions, const at::Tensor& plain,
                             const std::vector<size_t>& bytes) {
  std::vector<Slice> slices;
  size_t at = 0;
  for (const size_t length : bytes) {
    slices.push_back(regions.slice(plain, at, length));
    at += length;
  }
  return slices;
}

std::vector<Slice> slices_of(const Tensors& plain) {
  Regions regions;
  std::vector<Slice> slices;
  for (const at::Tensor& tensor : plain) slices.push_back(regions.slice(tensor));
  return slices;
}

Tensors readable_all(const Tensors& tensors) {
  Tensors plain;
  for (const at::Tensor& tensor : tensors) plain.push_back(readable(tensor));
  return plain;
}

Tensors cloned(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensors copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone(at::MemoryFormat::Contiguous));
  }
  return copies;
}

}  // namespace

WorkPtr ProcessGroupMcast::post_exchange(Op op, c10d::OpType type, ExchangePlan plan,
                                         Tensors inputs, std::vector<Tensors> outputs,
                                         const CallOptions& call) {
  const auto engine_group = group(op_name(op));
  uint64_t bytes = 0;
  for (const Slice& slice : plan.outputs) bytes += slice.length;
  auto work = make_work(op, type, title_of(op), std::move(inputs), std::move(outputs), 1,
                        std::move(plan.back));
  auto posted =
      engine_group->post_exchange(plan.kind, std::move(plan.inputs), std::move(plan.outputs),
                                  plan.root, post_options(op, *work, call, plan.dtype));
  if (!posted.ok()) throw_status(posted.status(), context(op_name(op), sequence_));
  return served(op, bytes, work);
}

WorkPtr ProcessGroupMcast::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::GatherOptions& opts) {
  constexpr Op op = Op::gather;
  const char* const name = op_name(op);
  if (!first_of(name, inputs).device().is_cpu()) {
    return passed(op, c10d::OpType::GATHER, inputs[0],
                  [&](c10d::Backend& backend) { return backend.gather(outputs, inputs, opts); });
  }
  check_root(name, opts.rootRank, size_);
  const at::Tensor& input = check_single(name, "input", inputs);
  const bool root = opts.rootRank == rank_;
  TORCH_CHECK_VALUE(outputs.size() == (root ? 1 : 0), name, ": expected ",
                    root ? "1 list of outputs on the root" : "no outputs away from the root",
                    ", got ", outputs.size());
  if (root) check_list(name, "output", outputs[0], input, size_, true);
  const WithoutGil nogil;
  ExchangePlan plan(input.scalar_type(), wire::Kind::kGather, opts.rootRank, size_);
  at::Tensor source = readable(input);
  if (root) plan.outputs = slices_of(writable_apart(outputs[0], *plan.back));
  plan.inputs[plan.root] = Regions().slice(source);
  if (any_shared(plan.inputs, plan.outputs, static_cast<size_t>(rank_))) {
    plan.inputs[plan.root] = Regions().slice(cloned({source})[0]);
  }
  return post_exchange(op, c10d::OpType::GATHER, std::move(plan), inputs, outputs,
                       call_options(opts));
}

WorkPtr ProcessGroupMcast::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ScatterOptions& opts) {
  constexpr Op op = Op::scatter;
  const char* const name = op_name(op);
  if (!first_of(name, outputs).device().is_cpu()) {
    return passed(op, c10d::OpType::SCATTER, outputs[0],
                  [&](c10d::Backend& backend) { return backend.scatter(outputs, inputs, opts); });
  }
  check_root(name, opts.rootRank, size_);
  const at::Tensor& output = check_single(name, "output", outputs);
  const bool root = opts.rootRank == rank_;
  TORCH_CHECK_VALUE(inputs.size() == (root ? 1 : 0), name, ": expected ",
                    root ? "1 list of inputs on the root" : "no inputs away from the root",
                    ", got ", inputs.size());
  if (root) check_list(name, "input", inputs[0], output, size_, true);
  const WithoutGil nogil;
  ExchangePlan plan(output.scalar_type(), wire::Kind::kScatter, opts.rootRank, size_);
  plan.outputs[plan.root] = Regions().slice(writable(output, *plan.back));
  if (root) {
    const Tensors sources = readable_all(inputs[0]);
    plan.inputs = slices_of(sources);
    if (any_shared(plan.inputs, plan.outputs, static_cast<size_t>(rank_))) {
      plan.inputs = slices_of(cloned(sources));
    }
  }
  return post_exchange(op, c10d::OpType::SCATTER, std::move(plan), root ? inputs[0] : Tensors(),
                       {outputs}, call_options(opts));
}

WorkPtr ProcessGroupMcast::alltoall(Tensors& outputs, Tensors& inputs,
                                    const c10d::AllToAllOptions& opts) {
  constexpr Op op = Op::all_to_all;
  const char* const name = op_name(op);
  if (!first_of(name, inputs).device().is_cpu()) {
    return passed(op, c10d::OpType::ALLTOALL, inputs[0],
                  [&](c10d::Backend& backend) { return backend.alltoall(outputs, inputs, opts); });
  }
  check_list(name, "input", inputs, inputs[0], size_, false);
  check_list(name, "output", outputs, inputs[0], size_, false);
  const auto own = static_cast<size_t>(rank_);
  TORCH_CHECK_VALUE(outputs[own].numel() == inputs[own].numel(), name, ": output ", own, " has ",
                    outputs[own].numel(), " elements, input ", own, " has ", inputs[own].numel());
  const WithoutGil nogil;
  ExchangePlan plan(inputs[0].scalar_type());
  const Tensors sources = readable_all(inputs);
  plan.outputs = slices_of(writable_apart(outputs, *plan.back));
  plan.inputs = slices_of(sources);
  if (any_shared(plan.inputs, plan.outputs, own)) plan.inputs = slices_of(cloned(sources));
  return post_exchange(op, c10d::OpType::ALLTOALL, std::move(plan), inputs, {outputs},
                       call_options(opts));
}

WorkPtr ProcessGroupMcast::alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<int64_t>& output_splits,
                                         std::vector<int64_t>& input_splits,
                                         const c10d::AllToAllOptions& opts) {
  constexpr Op op = Op::all_to_all_single;
  const char* const name = op_name(op);
  TORCH_CHECK_VALUE(input.defined(), name, ": the input is an undefined tensor");
  if (!input.device().is_cpu()) {
    return passed(op, c10d::OpType::ALLTOALL_BASE, input, [&](c10d::Backend& backend) {
      return backend.alltoall_base(output, input, output_splits, input_splits, opts);
    });
  }
  check_dense(name, "input", input);
  check_like(name, "output", output, input);
  const std::vector<size_t> out = row_bytes("input", input, input_splits, size_);
  const std::vector<size_t> in = row_bytes("output", output, output_splits, size_);
  const auto own = static_cast<size_t>(rank_);
  TORCH_CHECK_VALUE(out[own] == in[own], name, ": this rank has ", out[own],
                    " bytes for itself and expects ", in[own]);
  const WithoutGil nogil;
  ExchangePlan plan(input.scalar_type());
  Regions regions;
  plan.outputs = slices_of(regions, writable(output, *plan.back), in);
  const at::Tensor source = readable(input);
  plan.inputs = slices_of(regions, source, out);
  if (any_shared(plan.inputs, plan.outputs, own)) {
    Regions copied;
    plan.inputs = slices_of(copied, cloned({source})[0], out);
  }
  return post_exchange(op, c10d::OpType::ALLTOALL_BASE, std::move(plan), {input}, {{output}},
                       call_options(opts));
}

}  // namespace mcast::pg
