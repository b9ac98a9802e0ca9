// Device and host share the words at the head of the pinned memory (copy_plan.cpp) through a gate;
// without a gate only lane and poller use them.
//
// Deadlocks. Everything for which the device has to wait is already enqueued, or depends on the
// network alone: the copies out of an operation come before its gates, both wait for the caller's
// stream as it was at the post, and that can only wait for operations posted before. The network in
// turn waits for copies out only. So as long as all ranks post operations on device tensors in the
// same order (over all groups: the rule of NCCL), some operation can always make progress. A stream
// holds a bounded number of commands, and enqueueing one more waits until the gates open: so the
// work is given to the poller before its gates are enqueued. The poller makes no call to the device
// while gates are closed: such a call could wait for a lock that another thread holds until the
// gates open. A separate thread, for which no other waits, checks whether the device still works
// (check()).
//
// Messages have no such order: a closed gate on a shared stream would make other operations wait
// for a message that may never come. So there is a gate only if a caller waits for the message, on
// the caller's own stream, and no earlier command is needed there any more. A receive for which no
// caller waits has none: when the message is here, a thread of its own (the device may block it)
// enqueues the copy.
#include "device/device_copies.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "background.h"
#include "device/completion_poller.h"
#include "device/said.h"
#include "device/words.h"
#include "work.h"

namespace mcast::pg {
namespace {

// Unsent sends, in pieces of the group, beyond which a caller that waits for one waits for its end.
constexpr size_t kMostAhead = 512;
using Plan = CopyPlan;

}  // namespace

DeviceCopies::DeviceCopies(std::vector<DevicePlan> transfers, std::shared_ptr<CopyBacks> backs,
                           int rank, const SideStreams& streams,
                           std::shared_ptr<FailurePolicy> policy, const Pinned& pinned)
    : plan_(std::move(transfers), rank, streams.piece, streams.unit),
      streams_(streams),
      policy_(std::move(policy)),
      backs_(std::move(backs)),
      counted_(plan_.flags()),
      pinned_(pinned(plan_.bytes())),
      events_(streams.in.device_type()) {
  std::memset(pinned_->data(), 0, plan_.words() * sizeof(uint32_t));
  sources_.resize(plan_.transfers().size());
  for (size_t t = 0; t < plan_.transfers().size(); ++t) {
    const DevicePlan& transfer = plan_.transfers()[t];
    if (transfer.block == 0) continue;
    // (Receivers of a broadcast have no input, but one region for the slice that is written.)
    for (size_t i = 0; i < std::max<size_t>(1, transfer.sources.size()); ++i) {
      sources_[t].push_back(
          std::make_shared<Region>(host(plan_.source_at(t, i)), transfer.block, pinned_));
      if (!transfer.sources.empty()) sources_[t][i]->set_readable(0);
    }
  }
}

DeviceCopies::Listener DeviceCopies::Listener::of(c10::intrusive_ptr<McastWork> work,
                                                  const std::shared_ptr<Group>& group) {
  auto abort = [weak = std::weak_ptr<Group>(group)](const std::string& reason) {
    // Releasing the last reference to a group waits for its end: not on the poller's thread.
    Background::instance().run(
        "abort: " + reason,
        [weak, reason] {
          if (const auto live = weak.lock()) live->abort(reason);
        },
        true);
  };
  return {std::move(work), group->waker(), std::move(abort)};
}

// Events are destroyed with it, which calls the device: not on a lane.
std::shared_ptr<DeviceCopies> DeviceCopies::make(std::vector<DevicePlan> transfers,
                                                 std::shared_ptr<CopyBacks> backs, int rank,
                                                 const SideStreams& streams,
                                                 std::shared_ptr<FailurePolicy> policy,
                                                 const Pinned& pinned) {
  return {new DeviceCopies(std::move(transfers), std::move(backs), rank, streams, std::move(policy),
                           pinned),
          [](DeviceCopies* copies) {
            Background::instance().in_order([copies] {
              const RelaxedCaptures relaxed(copies->streams_.in.device_type());
              delete copies;
            });
          }};
}

DeviceCopies::Slices DeviceCopies::slices(size_t i) const {
  const DevicePlan& transfer = transfers()[i];
  Slices out;
  const size_t block = transfer.block;
  const bool apart = transfer.kind == DevicePlan::Kind::scatter;
  out.inputs.resize(apart ? static_cast<size_t>(std::max<size_t>(transfer.sources.size(), 1)) : 1);
  out.outputs.resize(transfer.gather() ? transfer.targets.size() : 1);
  if (block == 0) return out;
  for (size_t s = 0; s < out.inputs.size(); ++s) out.inputs[s] = {sources_[i][s], 0, block};
  switch (transfer.kind) {
    case DevicePlan::Kind::broadcast:
    case DevicePlan::Kind::receive:
      out.outputs[0] = out.inputs[0];
      break;
    case DevicePlan::Kind::send:
      break;
    case DevicePlan::Kind::gather: {
      const auto all = std::make_shared<Region>(host(plan_.target_at(i, 0)),
                                                block * transfer.targets.size(), pinned_);
      for (size_t target = 0; target < out.outputs.size(); ++target) {
        out.outputs[target] = {all, target * block, block};
      }
      break;
    }
    default:
      if (transfer.kind == DevicePlan::Kind::reduce && transfer.targets[0].length == 0) break;
      // A separate region: the source's readable end does not apply to the output.
      out.outputs[0] = {std::make_shared<Region>(host(plan_.target_at(i, 0)), block, pinned_), 0,
                        block};
  }
  return out;
}

void DeviceCopies::hook(size_t i, McastWork& work, PostOptions& options) {
  if (plan_.receives()) return hook_receive(work, options);
  if (transfers()[i].block == 0) return;
  options.completed_step = plan_.piece();
  options.on_completed = [self = shared_from_this(), i](uint32_t target, uint64_t bytes) {
    self->completed(self->plan_.target_words(i)[target], bytes);
    if (self->streams_.gate == nullptr) CompletionPoller::instance().notify();
  };
  options.done = [self = shared_from_this(), i, work = &work,
                  work_done = std::move(options.done)](const Status& status) mutable {
    if (!status.ok() && !self->failed(i, status, *work)) {
      // The process is ending; until then the device may use all of it.
      new auto(std::move(self));
      new auto(std::move(work_done));
      return;
    }
    self->open(i);
    work_done(status);
    dispose(std::move(self));
  };
}

// The work's part is completed before the copy's: a caller that sees the copy end then finds the
// error in the work.
void DeviceCopies::hook_receive(McastWork& work, PostOptions& options) {
  options.done = [self = shared_from_this(), work = &work,
                  work_done = std::move(options.done)](const Status& status) mutable {
    if (!status.ok() && !self->failed(0, status, *work)) {
      new auto(std::move(self));
      new auto(std::move(work_done));
      return;
    }
    store(self->word(self->plan_.ins()[0].word), kOpen);
    work_done(status);
    self->half_done();
    dispose(std::move(self));
  };
}

// The second of launch() and the message's end: everything needed for the copy in is there.
void DeviceCopies::half_done() {
  if (halves_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (streams_.gate == nullptr) return CompletionPoller::instance().add(shared_from_this());
  if (taken_.load(std::memory_order_acquire)) return;
  Background::instance().run(
      "the copy of a message to its device",
      [self = shared_from_this()] { self->receive_on(self->streams_.in); }, true);
}

void DeviceCopies::completed(const Plan::TargetWord& target, uint64_t bytes) {
  if (target.length == 0) return;
  const bool whole = bytes == target.length;
  if (target.flag == Plan::kNoFlag) {
    const uint64_t piece = plan_.piece();
    raise(word(target.word),
          static_cast<uint32_t>(whole ? (bytes + piece - 1) / piece : bytes / piece));
  } else if (whole && !counted_[target.flag].exchange(true, std::memory_order_relaxed)) {
    add_one(word(target.word));
  }
}

void DeviceCopies::open(size_t transfer) {
  for (const Plan::TargetWord& target : plan_.target_words(transfer)) {
    if (target.length > 0 && target.flag == Plan::kNoFlag) store(word(target.word), kOpen);
    if (target.flag != Plan::kNoFlag) completed(target, target.length);
  }
  if (streams_.gate == nullptr) CompletionPoller::instance().notify();
}

void DeviceCopies::copy_out(const c10::Stream& caller) {
  events_.caller.record(caller);
  if (plan_.receives() && streams_.gate != nullptr) return;  // the copy in waits for it
  events_.caller.block(streams_.out);
  events_.caller.block(streams_.in);
  const c10::StreamGuard on(streams_.out);
  const std::vector<Plan::OutPiece>& outs = plan_.outs();
  for (size_t i = 0; i < outs.size();) {
    const Plan::OutPiece& piece = outs[i];
    const size_t end = plan_.out_run(i);
    size_t length = 0;
    for (; i < end; ++i) length += outs[i].length;
    const DeviceBytes& source = transfers()[piece.transfer].sources[piece.source];
    host_view(plan_.source_at(piece.transfer, piece.source) + piece.offset, length)
        .copy_(source.view(piece.offset, length), true);
    if (!outs[end - 1].signalled) continue;
    if (streams_.gate != nullptr) {
      streams_.gate->signal(streams_.out, word(Plan::kCopiedWord), static_cast<uint32_t>(end));
    } else {
      out_events_.emplace_back(c10::Event(streams_.out.device_type()), end);
      out_events_.back().first.record(streams_.out);
    }
  }
  events_.out_end.record(streams_.out);
}

uint32_t* DeviceCopies::word(size_t index) const {
  return reinterpret_cast<uint32_t*>(pinned_->data()) + index;
}

at::Tensor DeviceCopies::host_view(size_t offset, size_t length) const {
  const DeviceBytes all{pinned_->storage(), 0, pinned_->size()};
  return all.view(offset, length);
}

// On the in stream: copies piece `i` and those copied with it. Returns the next piece.
size_t DeviceCopies::copy_in(size_t i) {
  const Plan::InPiece& piece = plan_.ins()[i];
  const DevicePlan& transfer = transfers()[piece.transfer];
  const size_t end = plan_.in_run(i);
  size_t length = 0;
  for (; i < end; ++i) length += plan_.ins()[i].length;
  if (length == 0) return end;
  const at::Tensor target = transfer.targets[piece.target].view(piece.offset, length);
  if (piece.needed == 0) {
    target.copy_(transfer.sources[0].view(piece.offset, length), true);
  } else {
    target.copy_(host_view(plan_.target_at(piece.transfer, piece.target) + piece.offset, length),
                 true);
  }
  return end;
}

void DeviceCopies::enqueue_gates(const c10::Stream& stream) {
  const c10::StreamGuard on(stream);
  const Plan::InPiece* open = nullptr;  // the last piece that was waited for
  for (size_t i = 0; i < plan_.ins().size(); i = copy_in(i)) {
    const Plan::InPiece& piece = plan_.ins()[i];
    if (piece.needed == 0 || (open != nullptr && piece.same_gate(*open))) continue;
    streams_.gate->wait(stream, word(piece.word), piece.needed);
    open = &piece;
  }
  end_in(stream);
}

void DeviceCopies::end_in(const c10::Stream& stream) {
  if (streams_.gate != nullptr && policy_->poisons()) enqueue_poison();
  if (backs_) backs_->run();
  events_.out_end.block(stream);
  events_.in_end.record(stream);
  if (streams_.gate != nullptr) streams_.gate->signal(stream, word(Plan::kFinishedWord), 1);
  enqueued_.store(true, std::memory_order_release);
}

// With a gate. The first of two makes the copy: a caller that waits, or a thread when the message
// is here.
void DeviceCopies::receive_on(const c10::Stream& stream) {
  if (taken_.exchange(true)) return;
  const auto work = listener_.work;  // the poller releases it at the end
  CompletionPoller::instance().add(shared_from_this());
  if (failed_.load(std::memory_order_acquire)) {
    store(word(Plan::kFinishedWord), 1);
    enqueued_.store(true, std::memory_order_release);
  } else {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    try {
      const RelaxedCaptures relaxed(stream.device_type());
      events_.caller.block(stream);
      enqueue_gates(stream);
    } catch (...) {
      return break_down(std::current_exception());
    }
  }
  work->look_again();
}

void DeviceCopies::await() {
  if (!plan_.receives() || streams_.gate == nullptr || plan_.from_any()) return;
  const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
  receive_on(guard.getStream(streams_.in.device()));
}

bool DeviceCopies::runs_ahead() const {
  return plan_.sends() && pinned_for_sends() > kMostAhead * streams_.piece;
}

void DeviceCopies::launch(Listener listener) {
  listener_ = std::move(listener);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  try {
    const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
    copy_out(guard.getStream(streams_.in.device()));
    if (plan_.receives()) return half_done();
  } catch (const std::exception& error) {
    fail(said(error));
    throw;
  }
  CompletionPoller::instance().add(shared_from_this());
  if (streams_.gate == nullptr) return;
  try {
    enqueue_gates(streams_.in);
  } catch (...) {
    break_down(std::current_exception());
    throw;
  }
}

void DeviceCopies::refuse_capture(const CallName& name) const {
  const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
  TORCH_CHECK(!is_captured(guard.getStream(streams_.in.device())), name,
              ": wait() cannot be captured in a graph: call it before the capture begins");
}

void DeviceCopies::join() const {
  const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
  events_.in_end.block(guard.getStream(streams_.in.device()));
}

bool DeviceCopies::raise_readable() {
  const size_t before = raised_;
  if (streams_.gate != nullptr) {
    raised_ = load(word(Plan::kCopiedWord));
  } else {
    for (; next_out_event_ < out_events_.size() && out_events_[next_out_event_].first.query();
         ++next_out_event_) {
      raised_ = out_events_[next_out_event_].second;
    }
  }
  for (size_t i = before; i < raised_; ++i) {
    const Plan::OutPiece& piece = plan_.outs()[i];
    sources_[piece.transfer][piece.source]->set_readable(piece.offset + piece.length);
  }
  if (raised_ > before) listener_.wake();
  return raised_ == plan_.outs().size();
}

void DeviceCopies::enqueue_completed() {
  if (enqueued() || failed_.load(std::memory_order_acquire)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard on(streams_.in);
  while (written_ < plan_.ins().size()) {
    const Plan::InPiece& piece = plan_.ins()[written_];
    if (piece.needed > 0 && load(word(piece.word)) < piece.needed) return;
    // Read after the word: a failed operation opens all of them.
    if (failed_.load(std::memory_order_acquire)) return;
    written_ = copy_in(written_);
  }
  end_in(streams_.in);
  listener_.work->look_again();
}

bool DeviceCopies::poll() {
  try {
    failure_.rethrow();
    if (!(streams_.gate != nullptr ? poll_words() : poll_device())) return false;
  } catch (const std::exception& error) {
    fail(said(error));
    return true;
  }
  finish(nullptr);
  return true;
}

bool DeviceCopies::poll_words() {
  // Call it even if the end is seen below: the last piece may have arrived since.
  return raise_readable() && enqueued() && load(word(Plan::kFinishedWord)) != 0;
}

bool DeviceCopies::poll_device() {
  const RelaxedCaptures relaxed(streams_.in.device_type());
  const bool out = raise_readable();
  enqueue_completed();
  if (!out) return false;
  if (enqueued()) return events_.in_end.query();
  if (!failed_.load(std::memory_order_acquire)) return false;
  if (written_ == 0) return true;
  // Copies in are in flight, and no event follows them.
  const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
  return guard.queryStream(streams_.in);
}

void DeviceCopies::check() {
  if (!enqueued()) return;  // otherwise enqueueing would have detected the failure
  try {
    const RelaxedCaptures relaxed(streams_.in.device_type());
    events_.in_end.query();
  } catch (...) {
    break_down(std::current_exception());
  }
}

void DeviceCopies::finish(std::exception_ptr error) {
  over_.store(true, std::memory_order_relaxed);
  const auto work = std::exchange(listener_, {}).work;
  if (backs_) dispose_later(std::move(backs_));
  dispose_later(plan_.take_transfers());
  work->end_part(std::move(error));
}

}  // namespace mcast::pg
