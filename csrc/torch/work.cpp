// Completion. Parts count down; the last one decides, under one mutex with getFuture(), which
// thread fulfils the future. If there is neither a future nor a copy to make, the waiters are woken
// immediately (the common case, and the fast one). Otherwise one background thread copies; another
// fulfils the future, whose callbacks may need Python's lock or wait for anything, and wakes the
// waiters last, so that a future is done when wait() returns.
//
// Device tensors. Work that is enqueued on a stream counts as done for wait() without a timeout and
// for the future, as with NCCL: users of the tensors are made to wait for that stream.
// is_completed() and wait(timeout) refer to the device and the network.
//
// Waiting. On a condition variable without Python's lock, in slices: after each slice Python's main
// thread checks for signals, so that Ctrl-C is noticed. An interrupted wait leaves the operation
// running; the engine keeps the memory.
#include "work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <utility>

#include "background.h"
#include "base/clock.h"
#include "base/errors.h"
#include "device/device_copies.h"
#include "gil.h"
#include "wait_slice.h"

namespace mcast::pg {
namespace {

constexpr std::chrono::milliseconds kSlice(200);

std::atomic<unsigned long> main_thread{0};

std::string first_line_hint(const Status& status) {
  const auto named = find_error(status.message());
  if (named && named->id == ErrorId::rank_unreached) {
    return " Hint: is the interface named here on the network of the job? MCAST_SOCKET_IFNAME takes"
           " another one, an address or a network. A firewall between the hosts must let in TCP"
           " (MCAST_PORT_RANGE); 'torch-mcast doctor' under torchrun finds out more.";
  }
  switch (status.code()) {
    case Code::kTimeout:
      return " Hint: look at the ranks named here first; the limit is the timeout of the group or"
             " of the call.";
    case Code::kPeerLost:
      return " Hint: the output of the lost rank says why it ended; liveness_limit"
             " (MCAST_LIVENESS_LIMIT) is the time that a rank may be silent.";
    case Code::kMismatch:
      return " Hint: all ranks must make the same calls in the same order; calls from callbacks of"
             " futures do not have the same order by themselves (docs/compatibility.md);"
             " TORCH_DISTRIBUTED_DEBUG=DETAIL finds the first that differs.";
    case Code::kClosed:
      return " Hint: a group that failed or was destroyed stays unusable; make a new one.";
    case Code::kAborted:
      return " Hint: the rank named here called abort() or was interrupted; its output says why.";
    case Code::kUnavailable:
      return " Hint: 'torch-mcast doctor' on this host, or under torchrun on all, finds out more.";
    case Code::kResourceExhausted:
      return " Hint: a limit of this process or host is reached: 'ulimit -n' (descriptors), memory,"
             " net.ipv4.igmp_max_memberships.";
    case Code::kSystem:
      return " Hint: the call named here was refused: missing rights, a sandbox, or an interface"
             " that changed; see 'torch-mcast doctor'.";
    case Code::kInternal:
      return " Hint: please report this with the output of all ranks.";
    default:
      return "";
  }
}

}  // namespace

void set_main_thread(unsigned long ident) { main_thread.store(ident); }

void check_signals() {
  if (Py_IsInitialized() == 0 || PyThread_get_thread_ident() != main_thread.load()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error error;
  error.persist();
  throw std::move(error);
}

bool handles_interrupt() {
  if (Py_IsInitialized() == 0) return false;
  const pybind11::gil_scoped_acquire gil;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_GetExcInfo(&type, &value, &trace);
  const bool yes = value != nullptr && value != Py_None &&
                   PyErr_GivenExceptionMatches(value, PyExc_KeyboardInterrupt) != 0;
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return yes;
}

bool HeldSignal::raised() {
  try {
    if (!what_) check_signals();
  } catch (...) {
    what_ = std::current_exception();
  }
  return what_ != nullptr;
}

void HeldSignal::rethrow() {
  if (what_) std::rethrow_exception(std::exchange(what_, nullptr));
}

void HeldSignal::raise_later() {
  if (std::exchange(what_, nullptr)) PyErr_SetInterrupt();
}

void throw_status(const Status& status, const std::string& context) {
  const std::string text =
      (context.empty() ? "" : context + ": ") + status.to_string() + first_line_hint(status);
  if (status.code() == Code::kInvalidArgument) C10_THROW_ERROR(ValueError, text);
  C10_THROW_ERROR(DistBackendError, text);
}

std::exception_ptr to_exception(const Status& status, const std::string& context) {
  try {
    throw_status(status, context);
  } catch (...) {
    return std::current_exception();
  }
}

McastWork::McastWork(Description description)
    : Work(description.rank, description.type, description.title,
           description.title ? std::optional(description.inputs) : std::nullopt),
      outputs_(std::move(description.outputs)),
      sequence_(description.sequence),
      context_(std::move(description.context)),
      nested_(Background::in_task()),
      flight_(std::move(description.flight)),
      interrupted_(std::move(description.interrupted)),
      contributors_(
          std::make_shared<std::atomic<uint32_t>>(static_cast<uint32_t>(description.size))) {}

McastWork::~McastWork() {
  if (!flight_ || flight_->over()) return;
  flight_->end(false);  // it was refused
  flight_->tell();
}

void McastWork::note_interrupt() {
  std::lock_guard lock(settle_mutex_);
  if (settled_ || counted_ || !interrupted_) return;
  counted_ = true;
  interrupted_->fetch_add(1);
}

void McastWork::settled_now() {
  settled_ = true;
  if (std::exchange(counted_, false)) interrupted_->fetch_sub(1);
}

Completion McastWork::completion() {
  return [held = self()](const Status& status) mutable {
    if (!status.ok() && held->failure_hook_) held->failure_hook_(status);
    held->end_part(status.ok() ? nullptr : to_exception(status, held->context_.text()));
    dispose(std::move(held));
  };
}

void McastWork::end_part(std::exception_ptr error) {
  if (error) {
    std::lock_guard lock(settle_mutex_);
    if (!error_) error_ = error;
  }
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (copies_) copies_->release();
  bool copies = false, future = false;
  std::exception_ptr final_error;
  {
    std::lock_guard lock(settle_mutex_);
    final_error = error_;
    copies = after_ && !error_;
    future = future_ && !promised_;
    if (!copies && !future) settled_now();
  }
  if (copies) {
    Background::instance().in_order([held = self()] { held->copy_back(); });
  } else if (future) {
    settle_later();
  } else {
    over(final_error);
  }
}

bool McastWork::record_failure(std::exception_ptr error) {
  const std::lock_guard lock(settle_mutex_);
  if (!error_) error_ = std::move(error);
  return relied_on_;
}

std::exception_ptr McastWork::device_error(const std::string& why) const {
  try {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(context_, ": the device failed: ", why,
                             " Hint: the first error of a kernel of this rank is the cause; "
                             "CUDA_LAUNCH_BLOCKING=1 shows where it comes from."));
  } catch (...) {
    return std::current_exception();
  }
}

void McastWork::over(const std::exception_ptr& error) {
  // A caller that waits for this work may ask how long it took; one that waits for all works may
  // ask whether this one is completed.
  const Member source = source_ ? source_->load(std::memory_order_acquire) : kNoMember;
  if (flight_ && source != kNoMember) flight_->came_from(source);
  if (flight_) flight_->end(error == nullptr);
  finish(error);
  if (flight_) flight_->tell();
}

int McastWork::sourceRank() const {
  const Member source = source_ ? source_->load(std::memory_order_acquire) : kNoMember;
  TORCH_CHECK(source != kNoMember, context_,
              ": the source is known when a receive has ended without an error");
  return source;
}

float McastWork::getDuration() const {
  TORCH_CHECK(flight_ && flight_->over(), context_,
              ": the duration is known when the operation is over");
  return flight_->milliseconds();
}

c10::intrusive_ptr<McastWork> McastWork::self() {
  return c10::intrusive_ptr<McastWork>::unsafe_reclaim_from_nonowning(this);
}

void McastWork::copy_back() {
  std::exception_ptr error;
  try {
    after_();
  } catch (...) {
    error = std::current_exception();
  }
  after_ = nullptr;
  {
    std::lock_guard lock(settle_mutex_);
    error_ = error;
    if (!future_) settled_now();
    if (!settled_) return settle_later();
  }
  over(error);
}

void McastWork::settle_later() {
  Background::instance().run(
      "callbacks of " + context_.text(), [held = self()] { held->settle(); }, nested_);
}

void McastWork::settle() {
  std::exception_ptr error;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(settle_mutex_);
    settled_now();
    error = error_;
    future = future_;
  }
  fulfil(future, error);
  over(error);
}

void McastWork::fulfil(const c10::intrusive_ptr<c10::ivalue::Future>& future,
                       const std::exception_ptr& error) const {
  // Users of the value wait for the commands enqueued on the stream that is current here.
  std::optional<c10::StreamGuard> stream;
  if (copies_ && copies_->enqueued()) stream.emplace(copies_->stream());
  if (error) {
    future->setError(error);
  } else if (outputs_.size() > 1) {
    future->markCompleted(c10::IValue(outputs_));
  } else {
    future->markCompleted(c10::IValue(outputs_.empty() ? std::vector<at::Tensor>() : outputs_[0]));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> McastWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::exception_ptr error;
  {
    std::lock_guard lock(settle_mutex_);
    if (future_) return future_;
    c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
    if (outputs_.size() > 1) type = c10::ListType::create(type);
    std::vector<c10::Device> devices;
    for (const auto& list : outputs_) {
      for (const auto& tensor : list) {
        if (tensor.device().is_cpu()) continue;
        if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
          devices.push_back(tensor.device());
        }
      }
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(type, devices);
    promised_ = !settled_ && copies_ && copies_->promises();
    if (promised_ && !error_) relied_on_ = true;
    if (!settled_ && !promised_) return future_;
    future = future_;
    error = error_;
  }
  fulfil(future, error);  // no other thread will
  return future;
}

bool McastWork::may_join() const {
  if (!copies_ || copies_->runs_ahead()) return false;
  const WithoutGil nogil;
  copies_->await();
  return true;
}

bool McastWork::device_ready() const { return copies_ && copies_->enqueued(); }

void McastWork::look_again() {
  // Locked, so that the notification is not lost between a waiter's check and its sleep.
  const std::lock_guard lock(mutex_);
  cv_.notify_all();
}

bool McastWork::throw_or_join() {
  std::exception_ptr error;
  bool joins = false;
  {
    const std::lock_guard lock(settle_mutex_);
    error = error_;
    joins = !error && device_ready();
    if (joins) relied_on_ = true;  // before the stream waits: a failure from now on is not raised
  }
  if (joins) copies_->join();
  // Call it even after an error: functional collectives register a work until it has been waited
  // for.
  Work::synchronize();
  if (error) std::rethrow_exception(error);
  return true;
}

bool McastWork::wait(std::chrono::milliseconds timeout) {
  const Nanos start = monotonic_now();
  if (copies_) {
    const WithoutGil nogil;
    copies_->refuse_capture(context_);
  }
  const bool joins = timeout <= kNoTimeout && may_join();
  if (joins && device_ready()) {
    const WithoutGil nogil;
    return throw_or_join();
  }
  {
    const WithoutGil nogil;
    std::unique_lock lock(mutex_);
    while (!completed_) {
      const auto slice = wait_slice(start, timeout, kSlice, context_);
      const auto done = [&] { return completed_ || (joins && device_ready()); };
      bool helped = false;
      if (helper_) {
        lock.unlock();
        const auto seen = [&] {
          const std::lock_guard look(mutex_);
          return done();
        };
        helped = helper_(seen, monotonic_now() + static_cast<Nanos>(slice.count()) * kMilli);
        lock.lock();
      }
      if (helped ? done() : cv_.wait_for(lock, slice, done)) break;
      lock.unlock();
      try {
        check_signals();
      } catch (...) {
        note_interrupt();
        throw;
      }
      lock.lock();
    }
  }
  return throw_or_join();
}

void McastWork::synchronize() {
  if (copies_) {
    wait();
  } else {
    Work::synchronize();
  }
}

std::vector<at::Tensor> McastWork::result() {
  TORCH_CHECK(isCompleted() || device_ready(), context_,
              ": result() needs a completed work; call wait() first");
  TORCH_CHECK(outputs_.size() <= 1, context_,
              ": result() cannot return a list of lists; use get_future().value()");
  return outputs_.empty() ? std::vector<at::Tensor>() : outputs_[0];
}

}  // namespace mcast::pg
