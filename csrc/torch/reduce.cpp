// Reductions on the engine's reduce lane: CPU tensors in place, device tensors through pinned
// memory (device/device_copies.h), unless their device has a fallback that reduces on the device
// (NCCL). Complex tensors travel as pairs of real numbers, which is exact for sums.
#include "backend.h"
#include "gil.h"
#include "reducing.h"

namespace mcast::pg {
namespace {

using c10d::ReduceOp;

constexpr const char* kTitleAllReduce = "mcast:all_reduce";
constexpr const char* kTitleReduceScatter = "mcast:reduce_scatter";
constexpr const char* kTitleReduce = "mcast:reduce";

const char* op_text(const ReduceOp& op) {
  switch (op.op_) {
    case ReduceOp::SUM:
      return "SUM";
    case ReduceOp::AVG:
      return "AVG";
    case ReduceOp::PRODUCT:
      return "PRODUCT";
    case ReduceOp::MIN:
      return "MIN";
    case ReduceOp::MAX:
      return "MAX";
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BOR:
      return "BOR";
    case ReduceOp::BXOR:
      return "BXOR";
    case ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "an unknown ReduceOp";
  }
}

Reduction reduction_of(const char* op, const ReduceOp& reduce) {
  switch (reduce.op_) {
    case ReduceOp::SUM:
      return Reduction::kSum;
    case ReduceOp::AVG:
      return Reduction::kAvg;
    case ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case ReduceOp::MIN:
      return Reduction::kMin;
    case ReduceOp::MAX:
      return Reduction::kMax;
    case ReduceOp::BAND:
      return Reduction::kBitAnd;
    case ReduceOp::BOR:
      return Reduction::kBitOr;
    case ReduceOp::BXOR:
      return Reduction::kBitXor;
    case ReduceOp::PREMUL_SUM:
      return Reduction::kPremulSum;
    default:
      TORCH_CHECK_VALUE(false, op, ": ", op_text(reduce), " (", static_cast<int>(reduce.op_), ")");
  }
}

// The engine's element for `type`; nullopt if it cannot be reduced at all.
std::optional<Element> element_of(at::ScalarType type) {
  switch (c10::toRealValueType(type)) {
    case at::kDouble:
      return Element::kFloat64;
    case at::kFloat:
      return Element::kFloat32;
    case at::kHalf:
      return Element::kFloat16;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kFloat8_e4m3fn:
      return Element::kFloat8E4M3;
    case at::kFloat8_e5m2:
      return Element::kFloat8E5M2;
    case at::kLong:
      return Element::kInt64;
    case at::kUInt64:
      return Element::kUInt64;
    case at::kInt:
      return Element::kInt32;
    case at::kUInt32:
      return Element::kUInt32;
    case at::kShort:
      return Element::kInt16;
    case at::kUInt16:
      return Element::kUInt16;
    case at::kChar:
      return Element::kInt8;
    case at::kByte:
      return Element::kUInt8;
    case at::kBool:
      return Element::kBool;
    default:
      return std::nullopt;
  }
}

bool has_meaning(at::ScalarType type, Element element, Reduction reduction) {
  if (c10::isComplexType(type)) {
    return reduction == Reduction::kSum || reduction == Reduction::kAvg ||
           reduction == Reduction::kPremulSum;
  }
  return reducible(element, reduction);
}

// The factor of PREMUL_SUM: a number, or a tensor of one (c10d allows no other).
double factor_of(const char* op, const ReduceOp& reduce) {
  TORCH_CHECK_VALUE(reduce.supplement_.defined(), op, ": PREMUL_SUM has no factor");
  // Header-only type: its RTTI is not shared between libraries, the op's code says what it is.
  const auto& factor = *static_cast<const c10d::NCCLPreMulSumSupplement*>(reduce.supplement_.get());
  return factor.tensor_factor.defined() ? factor.tensor_factor.item().toDouble()
                                        : factor.double_factor;
}

}  // namespace

bool integer_average(at::ScalarType type, const ReduceOp& reduce) {
  return reduce.op_ == ReduceOp::AVG && c10::isIntegralType(type, /*includeBool=*/false);
}

Reducing reducing(const char* op, at::ScalarType type, const ReduceOp& reduce) {
  const std::optional<Element> element = element_of(type);
  Reducing how;
  how.reduction = integer_average(type, reduce) ? Reduction::kSum : reduction_of(op, reduce);
  if (!element || !has_meaning(type, *element, how.reduction)) {
    C10_THROW_ERROR(TypeError, c10::str(op, ": ", op_text(reduce), " of ", type,
                                        " tensors has no meaning or is not served"));
  }
  how.element = *element;
  if (how.reduction == Reduction::kPremulSum) how.factor = factor_of(op, reduce);
  return how;
}

namespace {

// A copy of `input` where `output` shares bytes with it in another way than being its part `from`
// (bytes): the output would be written while the input is still read.
at::Tensor apart(const at::Tensor& input, const at::Tensor& output, size_t from) {
  const auto* in = static_cast<const std::byte*>(input.const_data_ptr());
  const auto* out = static_cast<const std::byte*>(output.const_data_ptr());
  const bool shared = out < in + input.nbytes() && in < out + output.nbytes();
  if (!shared || out == in + from) return input;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return input.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

bool ProcessGroupMcast::reduces(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta()) return false;
  return fallbacks_->none_on(tensor.device().type());
}

WorkPtr ProcessGroupMcast::reduce_device(Op op, c10d::OpType type, const char* title,
                                         const Tensors& inputs, const Tensors& outputs,
                                         const c10d::ReduceOp& reduce, const PlanCopies& plan,
                                         std::chrono::milliseconds timeout) {
  const char* name = op_name(op);
  for (const at::Tensor& tensor : inputs) {
    TORCH_CHECK_VALUE(tensor.device() == inputs[0].device(), name,
                      ": all tensors of one call must be on one device, got ", inputs[0].device(),
                      " and ", tensor.device());
  }
  devices_.check(op, inputs[0].device());
  auto back = std::make_shared<CopyBacks>();
  std::vector<DevicePlan> transfers;
  for (size_t i = 0; i < outputs.size(); ++i) {
    transfers.push_back(plan(i, reducing(name, outputs[i].scalar_type(), reduce), *back));
  }
  return post_device(op, type, title, std::move(transfers), inputs, {outputs}, std::move(back),
                     timeout);
}

WorkPtr ProcessGroupMcast::allreduce_each(Op op, c10d::OpType type, Tensors& tensors,
                                          const c10d::ReduceOp& reduce, const CallOptions& call) {
  const char* name = op_name(op);
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_dense(name, "tensor " + std::to_string(i), tensors[i]);
    (void)reducing(name, tensors[i].scalar_type(), reduce);
  }
  const WithoutGil nogil;
  if (!tensors.empty() && !tensors[0].device().is_cpu()) {
    return reduce_device(
        op, type, kTitleAllReduce, tensors, tensors, reduce,
        [&](size_t i, const Reducing& how, CopyBacks& back) {
          if (integer_average(tensors[i].scalar_type(), reduce)) back.divide(tensors[i]);
          return plan_allreduce(tensors[i], how, size_, back);
        },
        call.timeout);
  }
  const auto engine_group = group(name);
  struct Part {
    Slice input, output;
    Reducing how;
  };
  auto back = std::make_shared<CopyBacks>();
  Regions regions;
  std::vector<Part> parts;
  const Tensors places = in_place_apart(tensors, *back);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Part part;
    part.how = reducing(name, tensors[i].scalar_type(), reduce);
    part.input = part.output = regions.slice(places[i]);
    if (integer_average(tensors[i].scalar_type(), reduce)) {
      TORCH_CHECK_VALUE(places[i].is_same(tensors[i]) || !is_plain(tensors[i]), name,
                        ": averages of integers need tensors that do not share memory");
      back->divide(tensors[i]);
    }
    parts.push_back(std::move(part));
  }
  auto work = make_work(op, type, kTitleAllReduce, tensors, {tensors},
                        std::max<int>(1, static_cast<int>(parts.size())), std::move(back));
  if (parts.empty()) work->end_part(nullptr);
  for (size_t i = 0; i < parts.size(); ++i) {
    auto posted = engine_group->post_allreduce(
        std::move(parts[i].input), std::move(parts[i].output), parts[i].how,
        post_options(op, *work, call, tensors[i].scalar_type()));
    if (!posted.ok()) throw_status(posted.status(), context(name, sequence_));
  }
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return served(op, bytes, work);
}

WorkPtr ProcessGroupMcast::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  constexpr Op op = Op::all_reduce;
  if (tensors.size() == 1 && reduces(tensors[0])) {
    return allreduce_each(op, c10d::OpType::ALLREDUCE, tensors, opts.reduceOp, call_options(opts));
  }
  return passed(op, c10d::OpType::ALLREDUCE, first_of(op_name(op), tensors),
                [&](c10d::Backend& backend) { return backend.allreduce(tensors, opts); });
}

WorkPtr ProcessGroupMcast::allreduce_coalesced(Tensors& tensors,
                                               const c10d::AllreduceCoalescedOptions& opts) {
  constexpr Op op = Op::all_reduce_coalesced;
  if (tensors.empty() || reduces(tensors[0])) {
    for (const at::Tensor& tensor : tensors) check_like(op_name(op), "tensor", tensor, tensors[0]);
    return allreduce_each(op, c10d::OpType::ALLREDUCE_COALESCED, tensors, opts.reduceOp,
                          call_options(opts));
  }
  return passed(op, c10d::OpType::ALLREDUCE_COALESCED, first_of(op_name(op), tensors),
                [&](c10d::Backend& backend) { return backend.allreduce_coalesced(tensors, opts); });
}

WorkPtr ProcessGroupMcast::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  constexpr Op op = Op::reduce;
  TORCH_CHECK_VALUE(opts.rootRank >= 0 && opts.rootRank < size_,
                    "reduce: expected a root rank from 0 to ", size_ - 1, ", got ", opts.rootRank);
  TORCH_CHECK_VALUE(opts.rootTensor == 0, "reduce: expected root tensor 0, got ", opts.rootTensor);
  if (tensors.size() != 1 || !reduces(tensors[0])) {
    return passed(op, c10d::OpType::REDUCE, first_of(op_name(op), tensors),
                  [&](c10d::Backend& backend) { return backend.reduce(tensors, opts); });
  }
  const at::Tensor& tensor = check_single(op_name(op), "input", tensors);
  const Reducing how = reducing(op_name(op), tensor.scalar_type(), opts.reduceOp);
  const WithoutGil nogil;
  if (!tensor.device().is_cpu()) {
    return reduce_device(
        op, c10d::OpType::REDUCE, kTitleReduce, tensors, tensors, opts.reduceOp,
        [&](size_t, const Reducing& each, CopyBacks& back) {
          const bool averages = integer_average(tensor.scalar_type(), opts.reduceOp);
          if (averages && opts.rootRank == rank_) back.divide(tensor);
          return plan_reduce(tensor, static_cast<Member>(opts.rootRank), each, rank_, size_, back);
        },
        opts.timeout);
  }
  const auto engine_group = group(op_name(op));
  auto back = std::make_shared<CopyBacks>();
  Regions regions;
  const at::Tensor plain = readable(tensor);
  Slice from = regions.slice(plain), to;
  if (opts.rootRank == rank_) {
    to = from;
    if (!is_plain(tensor)) back->add(plain, tensor);
    if (integer_average(tensor.scalar_type(), opts.reduceOp)) back->divide(tensor);
  }
  auto work =
      make_work(op, c10d::OpType::REDUCE, kTitleReduce, tensors, {tensors}, 1, std::move(back));
  auto posted = engine_group->post_reduce(
      std::move(from), std::move(to), static_cast<Member>(opts.rootRank), how,
      post_options(op, *work, call_options(opts), tensor.scalar_type()));
  if (!posted.ok()) throw_status(posted.status(), context(op_name(op), sequence_));
  return served(op, tensor.nbytes(), work);
}

namespace {

void check_scatter(const char* op, const at::Tensor& output, const at::Tensor& input, int size) {
  check_dense(op, "input", input);
  check_like(op, "output", output, input);
  TORCH_CHECK_VALUE(output.numel() * size == input.numel(), op, ": expected an input of ", size,
                    " x ", output.numel(), " = ", output.numel() * size, " elements, got ",
                    input.numel());
}

}  // namespace

WorkPtr ProcessGroupMcast::scatter_each(Op op, c10d::OpType type, const Tensors& outputs,
                                        std::vector<ScatterPlan> plans, Tensors inputs,
                                        std::shared_ptr<CopyBacks> back, const CallOptions& call) {
  const auto engine_group = group(op_name(op));
  auto work = make_work(op, type, kTitleReduceScatter, std::move(inputs), {outputs},
                        std::max<int>(1, static_cast<int>(plans.size())), std::move(back));
  if (plans.empty()) work->end_part(nullptr);
  uint64_t bytes = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    bytes += outputs[i].nbytes();
    auto posted = engine_group->post_reduce_scatter(
        std::move(plans[i].inputs), std::move(plans[i].output), plans[i].how,
        post_options(op, *work, call, outputs[i].scalar_type()));
    if (!posted.ok()) throw_status(posted.status(), context(op_name(op), sequence_));
  }
  return served(op, bytes, work);
}

ProcessGroupMcast::ScatterPlan ProcessGroupMcast::plan_scatter(const char* op,
                                                               const at::Tensor& output,
                                                               const at::Tensor& input,
                                                               const c10d::ReduceOp& reduce,
                                                               CopyBacks& back) const {
  ScatterPlan plan;
  plan.how = reducing(op, input.scalar_type(), reduce);
  if (integer_average(input.scalar_type(), reduce)) back.divide(output);
  const at::Tensor to = writable(output, back);
  const size_t block = to.nbytes();
  const at::Tensor from = apart(readable(input), to, static_cast<size_t>(rank_) * block);
  Regions regions;
  plan.output = regions.slice(to);
  for (size_t r = 0; r < static_cast<size_t>(size_); ++r) {
    plan.inputs.push_back(regions.slice(from, r * block, block));
  }
  return plan;
}

WorkPtr ProcessGroupMcast::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ReduceScatterOptions& opts) {
  constexpr Op op = Op::reduce_scatter;
  const char* name = op_name(op);
  const at::Tensor& output = check_single(name, "output", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, name, ": expected 1 list of inputs, got ", inputs.size());
  TORCH_CHECK_VALUE(inputs[0].size() == static_cast<size_t>(size_), name, ": expected ", size_,
                    " input tensors, one per rank, got ", inputs[0].size());
  const bool uneven = differ_in_size(inputs[0]);
  for (size_t i = 0; i < inputs[0].size(); ++i) {
    const std::string what = "input " + std::to_string(i);
    check_like(name, what, inputs[0][i], output);
    if (uneven && i != static_cast<size_t>(rank_)) continue;
    TORCH_CHECK_VALUE(inputs[0][i].sizes() == output.sizes(), name, ": ", what, " must have shape ",
                      output.sizes(), ", got ", inputs[0][i].sizes());
  }
  if (!reduces(output)) {
    return passed(op, c10d::OpType::REDUCE_SCATTER, output, [&](c10d::Backend& backend) {
      return backend.reduce_scatter(outputs, inputs, opts);
    });
  }
  if (uneven) return scatter_uneven(output, inputs[0], opts.reduceOp, call_options(opts));
  ScatterPlan plan;
  plan.how = reducing(name, output.scalar_type(), opts.reduceOp);
  const WithoutGil nogil;
  if (!output.device().is_cpu()) {
    return reduce_device(
        op, c10d::OpType::REDUCE_SCATTER, kTitleReduceScatter, inputs[0], outputs, opts.reduceOp,
        [&](size_t, const Reducing& how, CopyBacks& back) {
          if (integer_average(output.scalar_type(), opts.reduceOp)) back.divide(output);
          return mcast::pg::plan_scatter(inputs[0], output, how, rank_, back);
        },
        opts.timeout);
  }
  auto back = std::make_shared<CopyBacks>();
  const at::Tensor to = writable(output, *back);
  if (integer_average(output.scalar_type(), opts.reduceOp)) back->divide(output);
  Regions regions;
  plan.output = regions.slice(to);
  for (size_t r = 0; r < static_cast<size_t>(size_); ++r) {
    const at::Tensor part = readable(inputs[0][r]);
    // The rank's own input may be the output itself; any other must be apart from it.
    const bool own = r == static_cast<size_t>(rank_);
    plan.inputs.push_back(regions.slice(apart(part, to, own ? 0 : SIZE_MAX)));
  }
  std::vector<ScatterPlan> plans;
  plans.push_back(std::move(plan));
  return scatter_each(op, c10d::OpType::REDUCE_SCATTER, outputs, std::move(plans), inputs[0],
                      std::move(back), call_options(opts));
}

WorkPtr ProcessGroupMcast::scatter_device(Op op, c10d::OpType type, const Tensors& outputs,
                                          const Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) {
  return reduce_device(
      op, type, kTitleReduceScatter, inputs, outputs, opts.reduceOp,
      [&](size_t i, const Reducing& how, CopyBacks& back) {
        if (integer_average(outputs[i].scalar_type(), opts.reduceOp)) back.divide(outputs[i]);
        return mcast::pg::plan_scatter(inputs[i], outputs[i], how, rank_, size_, back);
      },
      opts.timeout);
}

WorkPtr ProcessGroupMcast::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  constexpr Op op = Op::reduce_scatter_tensor;
  check_scatter(op_name(op), output, input, size_);
  if (!reduces(output)) {
    return passed(op, c10d::OpType::_REDUCE_SCATTER_BASE, output, [&](c10d::Backend& backend) {
      return backend._reduce_scatter_base(output, input, opts);
    });
  }
  const WithoutGil nogil;
  if (!input.device().is_cpu()) {
    return scatter_device(op, c10d::OpType::_REDUCE_SCATTER_BASE, {output}, {input}, opts);
  }
  auto back = std::make_shared<CopyBacks>();
  std::vector<ScatterPlan> plans;
  plans.push_back(plan_scatter(op_name(op), output, input, opts.reduceOp, *back));
  return scatter_each(op, c10d::OpType::_REDUCE_SCATTER_BASE, {output}, std::move(plans), {input},
                      std::move(back), call_options(opts));
}

WorkPtr ProcessGroupMcast::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  constexpr Op op = Op::reduce_scatter_tensor_coalesced;
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), op_name(op), ": expected as many outputs as ",
                    "inputs (", inputs.size(), "), got ", outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_scatter(op_name(op), outputs[i], inputs[i], size_);
  }
  if (!inputs.empty() && !reduces(inputs[0])) {
    return passed(op, c10d::OpType::COALESCED, inputs[0], [&](c10d::Backend& backend) {
      return backend.reduce_scatter_tensor_coalesced(outputs, inputs, opts);
    });
  }
  const WithoutGil nogil;
  if (!inputs.empty() && !inputs[0].device().is_cpu()) {
    return scatter_device(op, c10d::OpType::COALESCED, outputs, inputs, opts);
  }
  auto back = std::make_shared<CopyBacks>();
  std::vector<ScatterPlan> plans;
  for (size_t i = 0; i < inputs.size(); ++i) {
    plans.push_back(plan_scatter(op_name(op), outputs[i], inputs[i], opts.reduceOp, *back));
  }
  return scatter_each(op, c10d::OpType::COALESCED, outputs, std::move(plans), inputs,
                      std::move(back), call_options(opts));
}

}  // namespace mcast::pg
