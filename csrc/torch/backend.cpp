// The operations that the engine serves. Each validates everything first, since an operation that
// one rank refuses and another posts would only surface as a mismatch or a timeout elsewhere; then
// lays out slices (tensors.h), takes one completion per engine operation from one Work, and posts.
// The sequence number counts all collectives, engine's and fallback's, so that
// TORCH_DISTRIBUTED_DEBUG can compare ranks.
#include "backend.h"

#include "base/errors.h"
#include "base/own_pid.h"
#include "gil.h"
#include "members.h"

namespace mcast::pg {
namespace {

constexpr const char* kTitleAllGather = "mcast:all_gather";
constexpr const char* kTitleBroadcast = "mcast:broadcast";

void check_one_device(const char* op, const at::Tensor& first, const at::Tensor& other) {
  TORCH_CHECK_VALUE(first.device() == other.device(), op,
                    ": all tensors of one call must be on one device, got ", first.device(),
                    " and ", other.device());
}

void check_gather_flat(const char* op, const at::Tensor& output, const at::Tensor& input,
                       int size) {
  check_dense(op, "input", input);
  check_like(op, "output", output, input);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size, op, ": expected an output of ", size,
                    " x ", input.numel(), " = ", input.numel() * size, " elements, got ",
                    output.numel());
}

// The first error that one of them knows.
c10d::ErrorType error_of(const std::vector<BackendPtr>& backends) {
  for (const BackendPtr& backend : backends) {
    try {
      const c10d::ErrorType error = backend->getError();
      if (error != c10d::ErrorType::SUCCESS) return error;
    } catch (const c10::Error&) {
      // Gloo before torch 2.15 does not tell; its works do.
    }
  }
  return c10d::ErrorType::SUCCESS;
}

}  // namespace

ProcessGroupMcast::ProcessGroupMcast(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int size, const c10::intrusive_ptr<McastOptions>& options)
    : Backend(rank, size),
      store_(store),
      options_(c10::make_intrusive<McastOptions>(*options)),
      config_(options_->resolve()),
      name_(options_->group_name.empty() ? "?" : options_->group_name),
      members_(std::make_unique<Members>(*this)),
      place_(std::make_shared<const std::string>(members_->place())),
      pid_(own_pid()),
      timeout_ms_(options_->timeout.count()),
      observer_(std::make_shared<Observer>(name_, rank, size, options_->global_ranks_in_group)),
      fallbacks_(std::make_unique<Fallbacks>(*this)),
      devices_(config_) {
  TORCH_CHECK_VALUE(size >= 1 && size <= 65534 && rank >= 0 && rank < size,
                    "mcast: expected 1 to 65534 ranks and 0 <= rank < size, got rank ", rank,
                    " of ", size);
  last_stats_.name = name_;
  if (!members_->none) members_->make(store_, c10d::kUnsetTimeout);
  init();
}

ProcessGroupMcast::~ProcessGroupMcast() {
  if (!here()) {
    (void)new auto(std::move(group_));
    (void)fallbacks_.release();
    return;
  }
  try {
    const WithoutGil nogil;
    devices_.leave();
    std::shared_ptr<Group> group;
    {
      std::lock_guard lock(mutex_);
      group = std::move(group_);
    }
    HeldSignal signal;
    if (group) members_->close(*group, signal);
    group.reset();
    signal.raise_later();
    members_->drop(fallbacks_->release());
  } catch (const std::exception& error) {
    TORCH_WARN("mcast: while group '", name_, "' was destroyed: ", error.what());
  } catch (...) {
    TORCH_WARN("mcast: unknown error while group '", name_, "' was destroyed");
  }
}

bool ProcessGroupMcast::here() const { return own_pid() == pid_; }

void ProcessGroupMcast::check_here(const char* op) const {
  if (here()) return;
  throw_status(Status(Code::kClosed, c10::str(op, ": ", error_text<ErrorId::group_of_parent>(name_),
                                              "; make a new group after fork")),
               context(op, sequence_));
}

std::shared_ptr<Group> ProcessGroupMcast::group(const char* op) const {
  check_here(op);
  std::lock_guard lock(mutex_);
  if (!group_) {
    throw_status(
        Status(Code::kClosed, members_->none ? "the group has no members: call reconfigure()"
                                             : "the group was shut down"),
        context(op, sequence_));
  }
  return group_;
}

Nanos ProcessGroupMcast::limit(std::chrono::milliseconds timeout) const {
  if (timeout.count() <= 0) timeout = std::chrono::milliseconds(timeout_ms_.load());
  return timeout.count() <= 0 ? kNever : nanos_of_ms(timeout.count());
}

std::string ProcessGroupMcast::context(const char* op, uint64_t sequence) const {
  return CallName{op, sequence, place_}.text();
}

void ProcessGroupMcast::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ms_.store(timeout.count());
  options_->timeout = timeout;
  for (const BackendPtr& backend : fallbacks_->made()) backend->setTimeout(timeout);
}

c10d::ErrorType ProcessGroupMcast::getError() {
  Code code = members_->failure()->load();
  if (code == Code::kOk && !group_stats().failure.empty()) code = Code::kInternal;
  switch (code) {
    case Code::kOk:
      return error_of(fallbacks_->made());
    case Code::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case Code::kPeerLost:
    case Code::kMismatch:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupMcast::abort() {
  if (!here()) return;
  const WithoutGil nogil;
  std::shared_ptr<Group> group;
  {
    std::lock_guard lock(mutex_);
    group = group_;
  }
  Code none = Code::kOk;
  members_->failure()->compare_exchange_strong(none, Code::kAborted);
  devices_.leave();
  const std::string reason = c10::str("abort() on rank ", rank_);
  if (group) group->abort(reason);
  fallbacks_->works().fail_all(reason);
  for (const BackendPtr& backend : fallbacks_->made()) backend->abort();
}

void ProcessGroupMcast::shutdown() {
  if (!here()) return;
  const WithoutGil nogil;
  devices_.leave();
  HeldSignal signal;
  if (const std::shared_ptr<Group> group = members_->take_group()) {
    members_->close(*group, signal);
    std::lock_guard lock(mutex_);
    last_stats_ = group->stats();
  }
  for (const BackendPtr& backend : fallbacks_->made()) backend->shutdown();
  signal.rethrow();
}

GroupStats ProcessGroupMcast::group_stats() const {
  const WithoutGil nogil;  // lanes are asked, and may want Python's lock to let go of a tensor
  std::shared_ptr<Group> group;
  {
    std::lock_guard lock(mutex_);
    if (!group_) return last_stats_;
    group = group_;
  }
  return group->stats();
}

c10::intrusive_ptr<McastWork> ProcessGroupMcast::make_work(Op op, c10d::OpType type,
                                                           const char* title, Tensors inputs,
                                                           std::vector<Tensors> outputs, int parts,
                                                           std::shared_ptr<CopyBacks> back,
                                                           int peer) {
  McastWork::Description description;
  description.rank = rank_;
  description.size = size_;
  description.type = type;
  description.title = title;
  description.sequence = point_to_point(op) ? ++messages_ : ++sequence_;
  Told told;
  told.op = op;
  told.type = type;
  told.sequence = description.sequence;
  told.point_to_point = point_to_point(op);
  told.peer = peer;
  told.inputs = inputs;
  told.outputs = outputs;
  told.timeout = std::chrono::milliseconds(timeout_ms_.load());
  description.flight = observer_->begin(told, pg_desc_);
  description.inputs = std::move(inputs);
  description.outputs = std::move(outputs);
  description.context = {op_name(op), description.sequence, place_};
  description.interrupted = interrupted_;
  auto work = c10::make_intrusive<McastWork>(std::move(description));
  work->on_failure([first = members_->failure()](const Status& status) {
    Code none = Code::kOk;
    first->compare_exchange_strong(none, status.code());
  });
  work->set_helper([weak = std::weak_ptr(group(op_name(op))), lane = lane_of(op)](
                       const std::function<bool()>& done, Nanos until) {
    const auto engine_group = weak.lock();
    return engine_group && engine_group->help(lane, done, until);
  });
  if (back) back->divide_by(work->contributors());
  if (back && !back->empty()) work->set_after([back = std::move(back)] { back->run(); });
  work->expect(parts);
  return work;
}

PostOptions ProcessGroupMcast::post_options(Op op, McastWork& work, const CallOptions& call,
                                            at::ScalarType dtype) const {
  PostOptions options;
  options.timeout = limit(call.timeout);
  options.label = {static_cast<uint8_t>(dtype), op_name(op)};
  options.waited = call.waited;
  options.done = work.completion();
  options.contributors = work.contributors();
  return options;
}

WorkPtr ProcessGroupMcast::served(Op op, uint64_t bytes, WorkPtr work) {
  observer_->calls().engine(op, bytes);
  coalescing_.add(work);
  return work;
}

WorkPtr ProcessGroupMcast::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  constexpr Op op = Op::broadcast;
  const at::Tensor& tensor = check_single(op_name(op), "input", tensors);
  TORCH_CHECK_VALUE(opts.rootRank >= 0 && opts.rootRank < size_,
                    "broadcast: expected a root rank from 0 to ", size_ - 1, ", got ",
                    opts.rootRank);
  TORCH_CHECK_VALUE(opts.rootTensor == 0, "broadcast: expected root tensor 0, got ",
                    opts.rootTensor);
  const WithoutGil nogil;
  auto back = std::make_shared<CopyBacks>();
  if (!tensor.device().is_cpu()) {
    devices_.check(op, tensor.device());
    const auto root = static_cast<Member>(opts.rootRank);
    return post_device(op, c10d::OpType::BROADCAST, kTitleBroadcast,
                       {plan_broadcast(tensor, root, opts.rootRank == rank_, *back)}, tensors,
                       {tensors}, back, opts.timeout);
  }
  const auto engine_group = group(op_name(op));
  const at::Tensor plain = opts.rootRank == rank_ ? readable(tensor) : writable(tensor, *back);
  Regions regions;
  Slice data = regions.slice(plain);
  auto work = make_work(op, c10d::OpType::BROADCAST, kTitleBroadcast, tensors, {tensors}, 1,
                        std::move(back));
  auto posted = engine_group->post_broadcast(
      std::move(data), static_cast<Member>(opts.rootRank),
      post_options(op, *work, call_options(opts), tensor.scalar_type()));
  if (!posted.ok()) throw_status(posted.status(), context(op_name(op), sequence_));
  return served(op, tensor.nbytes(), work);
}

void ProcessGroupMcast::check_gather_lists(const char* op, const Tensors& outputs,
                                           const at::Tensor& input) const {
  check_dense(op, "input", input);
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), op, ": expected ", size_,
                    " output tensors, one per rank, got ", outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string what = "output " + std::to_string(i);
    check_like(op, what, outputs[i], input);
    TORCH_CHECK_VALUE(outputs[i].sizes() == input.sizes(), op, ": ", what, " must have shape ",
                      input.sizes(), ", got ", outputs[i].sizes());
  }
}

WorkPtr ProcessGroupMcast::post_gathers(Op op, c10d::OpType type, std::vector<GatherPlan> plans,
                                        Tensors inputs, std::vector<Tensors> outputs,
                                        std::shared_ptr<CopyBacks> back, const CallOptions& call) {
  const auto engine_group = group(op_name(op));
  Tensors typed = inputs;
  auto work = make_work(op, type, kTitleAllGather, std::move(inputs), std::move(outputs),
                        std::max(1, static_cast<int>(plans.size())), std::move(back));
  if (plans.empty()) work->end_part(nullptr);
  uint64_t bytes = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    bytes += plans[i].block * static_cast<uint64_t>(size_);
    auto posted =
        engine_group->post_allgather(std::move(plans[i].input), std::move(plans[i].outputs),
                                     post_options(op, *work, call, typed[i].scalar_type()));
    if (!posted.ok()) throw_status(posted.status(), context(op_name(op), sequence_));
  }
  return served(op, bytes, work);
}

WorkPtr ProcessGroupMcast::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& opts) {
  constexpr Op op = Op::all_gather;
  const at::Tensor& input = check_single(op_name(op), "input", inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1, "all_gather: expected 1 list of outputs, got ",
                    outputs.size());
  if (differ_in_size(outputs[0])) return gather_uneven(outputs[0], input, call_options(opts));
  check_gather_lists(op_name(op), outputs[0], input);
  const WithoutGil nogil;
  auto back = std::make_shared<CopyBacks>();
  if (!input.device().is_cpu()) {
    devices_.check(op, input.device());
    return post_device(op, c10d::OpType::ALLGATHER, kTitleAllGather,
                       {plan_transfer(input, outputs[0], rank_, *back)}, inputs, outputs, back,
                       opts.timeout);
  }
  std::vector<GatherPlan> plans;
  plans.push_back(plan_gather(input, outputs[0], rank_, *back));
  return post_gathers(op, c10d::OpType::ALLGATHER, std::move(plans), inputs, outputs,
                      std::move(back), call_options(opts));
}

WorkPtr ProcessGroupMcast::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& opts) {
  constexpr Op op = Op::all_gather_into_tensor;
  check_gather_flat(op_name(op), output, input, size_);
  const WithoutGil nogil;
  auto back = std::make_shared<CopyBacks>();
  if (!input.device().is_cpu()) {
    devices_.check(op, input.device());
    return post_device(op, c10d::OpType::_ALLGATHER_BASE, kTitleAllGather,
                       {plan_transfer(input, output, rank_, size_, *back)}, {input}, {{output}},
                       back, opts.timeout);
  }
  std::vector<GatherPlan> plans;
  plans.push_back(plan_gather(input, output, rank_, size_, *back));
  return post_gathers(op, c10d::OpType::_ALLGATHER_BASE, std::move(plans), {input}, {{output}},
                      std::move(back), call_options(opts));
}

WorkPtr ProcessGroupMcast::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& opts) {
  constexpr Op op = Op::all_gather_into_tensor_coalesced;
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), op_name(op), ": expected as many outputs as ",
                    "inputs (", inputs.size(), "), got ", outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_gather_flat(op_name(op), outputs[i], inputs[i], size_);
    check_one_device(op_name(op), inputs[0], inputs[i]);
  }
  const WithoutGil nogil;
  auto back = std::make_shared<CopyBacks>();
  if (!inputs.empty() && !inputs[0].device().is_cpu()) {
    devices_.check(op, inputs[0].device());
    std::vector<DevicePlan> transfers;
    for (size_t i = 0; i < inputs.size(); ++i) {
      transfers.push_back(plan_transfer(inputs[i], outputs[i], rank_, size_, *back));
    }
    return post_device(op, c10d::OpType::COALESCED, kTitleAllGather, std::move(transfers), inputs,
                       {outputs}, back, opts.timeout);
  }
  std::vector<GatherPlan> plans;
  for (size_t i = 0; i < inputs.size(); ++i) {
    plans.push_back(plan_gather(inputs[i], outputs[i], rank_, size_, *back));
  }
  return post_gathers(op, c10d::OpType::COALESCED, std::move(plans), inputs, {outputs},
                      std::move(back), call_options(opts));
}

WorkPtr ProcessGroupMcast::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& opts) {
  constexpr Op op = Op::all_gather_coalesced;
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), op_name(op), ": expected ", size_,
                    " lists of outputs, one per rank, got ", outputs.size());
  for (size_t r = 0; r < outputs.size(); ++r) {
    TORCH_CHECK_VALUE(outputs[r].size() == inputs.size(), op_name(op), ": output list ", r,
                      " must have ", inputs.size(), " tensors, got ", outputs[r].size());
  }
  std::vector<Tensors> columns(inputs.size());  // by input: one output per rank
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const auto& list : outputs) columns[i].push_back(list[i]);
    check_one_device(op_name(op), inputs[0], inputs[i]);
    check_gather_lists(op_name(op), columns[i], inputs[i]);
  }
  const WithoutGil nogil;
  auto back = std::make_shared<CopyBacks>();
  if (!inputs.empty() && !inputs[0].device().is_cpu()) {
    devices_.check(op, inputs[0].device());
    std::vector<DevicePlan> transfers;
    for (size_t i = 0; i < inputs.size(); ++i) {
      transfers.push_back(plan_transfer(inputs[i], columns[i], rank_, *back));
    }
    return post_device(op, c10d::OpType::ALLGATHER_COALESCED, kTitleAllGather, std::move(transfers),
                       inputs, outputs, back, opts.timeout);
  }
  std::vector<GatherPlan> plans;
  for (size_t i = 0; i < inputs.size(); ++i) {
    plans.push_back(plan_gather(inputs[i], columns[i], rank_, *back));
  }
  return post_gathers(op, c10d::OpType::ALLGATHER_COALESCED, std::move(plans), inputs, outputs,
                      std::move(back), call_options(opts));
}

WorkPtr ProcessGroupMcast::barrier(const c10d::BarrierOptions& opts) {
  constexpr Op op = Op::barrier;
  const WithoutGil nogil;
  finish_device(opts);
  const auto engine_group = group(op_name(op));
  auto work = make_work(op, c10d::OpType::BARRIER, "mcast:barrier", {}, {}, 1, nullptr);
  auto posted = engine_group->post_barrier(post_options(op, *work, call_options(opts), at::kByte));
  if (!posted.ok()) throw_status(posted.status(), context(op_name(op), sequence_));
  return served(op, 0, work);
}

}  // namespace mcast::pg
