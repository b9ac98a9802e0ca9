// The end comes once (ended_): from the inner future, from the return of the inner wait(), or from
// fail(). A caller that waits inside Gloo cannot check the group meanwhile; a thread of the process
// does it for them (FallbackWatch), which lives while there are such waits.
#include "fallback_work.h"

#include <ATen/core/ivalue.h>
#include <pthread.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "base/clock.h"
#include "gil.h"
#include "wait_slice.h"
#include "work.h"

namespace mcast::pg {
namespace {

constexpr std::chrono::milliseconds kLook(200);  // how soon the end of a group is detected

c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const c10::Error&) {
    return {};
  }
}

std::exception_ptr backend_error(const std::string& text) {
  try {
    C10_THROW_ERROR(DistBackendError, text);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

// Watches waits inside Gloo. After fork() the child has none.
class FallbackWatch {
 public:
  static FallbackWatch& instance() {
    static FallbackWatch* const watch = [] {
      pthread_atfork(nullptr, nullptr, [] { current() = new FallbackWatch; });
      return current() = new FallbackWatch;
    }();
    (void)watch;
    return *current();
  }

  void add(FallbackWork* work) {
    const std::lock_guard lock(mutex_);
    waits_.push_back(work);
    if (waits_.size() == 1) changed_.notify_all();
    if (std::exchange(runs_, true)) return;
    std::thread([this] { loop(); }).detach();
  }

  void remove(FallbackWork* work) {
    std::unique_lock lock(mutex_);
    waits_.erase(std::find(waits_.begin(), waits_.end(), work));
  }

 private:
  static FallbackWatch*& current() {
    static FallbackWatch* one = nullptr;
    return one;
  }

  void loop() {
    pthread_setname_np(pthread_self(), "mcast-fallback");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !waits_.empty(); });
      std::vector<std::pair<c10::intrusive_ptr<FallbackWork>, std::string>> over;
      for (FallbackWork* work : waits_) {
        const std::string failure = work->group_failure_();
        if (!failure.empty()) over.emplace_back(work->self(), failure);
      }
      lock.unlock();
      for (const auto& [work, failure] : over) work->fail(failure);
      over.clear();
      lock.lock();
      changed_.wait_for(lock, kLook);
    }
  }

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<FallbackWork*> waits_;
  bool runs_ = false;
};

FallbackWork::FallbackWork(WorkPtr inner, Description description)
    : Work(description.rank, description.type),
      inner_(std::move(inner)),
      sequence_(description.sequence),
      context_(std::move(description.context)),
      group_failure_(std::move(description.group_failure)),
      failed_(std::move(description.failed)),
      flight_(std::move(description.flight)),
      inner_future_(future_of(*inner_)) {}

FallbackWork::~FallbackWork() {
  if (flight_ && !flight_->over()) flight_->abandon();  // a send for which no caller has waited
}

void FallbackWork::follow() {
  if (!inner_future_) return;
  future_ = c10::make_intrusive<c10::ivalue::Future>(inner_future_->elementType(),
                                                     inner_future_->devices());
  inner_future_->addCallback([held = self()](c10::ivalue::Future& inner) {
    held->inner_over_.store(true);
    held->end(inner.hasError() ? held->worded(inner.exception_ptr()) : nullptr);
  });
}

c10::intrusive_ptr<FallbackWork> FallbackWork::self() {
  return c10::intrusive_ptr<FallbackWork>::unsafe_reclaim_from_nonowning(this);
}

std::exception_ptr FallbackWork::worded(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return backend_error(c10::str(context_, ": ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return backend_error(c10::str(context_, ": ", e.what()));
  }
}

void FallbackWork::end(std::exception_ptr error) {
  if (ended_.exchange(true)) return;
  if (error && failed_) failed_();
  if (flight_) flight_->end(error == nullptr);
  if (future_ && error) {
    future_->setError(error);
  } else if (future_) {
    future_->markCompleted(inner_future_->value());
  }
  finish(error);
  if (flight_) flight_->tell();
}

void FallbackWork::fail(const std::string& reason) {
  end(backend_error(c10::str(context_, ": ", reason)));
  if (inner_future_ || inner_over_.load()) return;
  try {
    inner_->abort();
  } catch (const c10::Error&) {
    // It is over, or cannot be aborted.
  }
}

float FallbackWork::getDuration() const {
  TORCH_CHECK(flight_ && flight_->over(), context_,
              ": the duration is known when the operation is over");
  return flight_->milliseconds();
}

bool FallbackWork::inner_runs() const { return inner_future_ && !inner_over_.load(); }

bool FallbackWork::isCompleted() {
  if (!inner_future_ && inner_->isCompleted()) return true;
  return Work::isCompleted();
}

c10::intrusive_ptr<c10::ivalue::Future> FallbackWork::getFuture() {
  return future_ ? future_ : inner_->getFuture();
}

void FallbackWork::wait_here(std::chrono::milliseconds timeout) {
  const Nanos start = monotonic_now();
  std::unique_lock lock(mutex_);
  while (!completed_) {
    const auto slice = wait_slice(start, timeout, kLook, context_);
    if (cv_.wait_for(lock, slice, [this] { return completed_; })) break;
    lock.unlock();
    check_signals();
    const std::string failure = group_failure_();
    if (!failure.empty()) fail(failure);
    lock.lock();
  }
}

void FallbackWork::wait_inside(std::chrono::milliseconds timeout) {
  FallbackWatch::instance().add(this);
  std::exception_ptr error;
  try {
    inner_->wait(timeout);
  } catch (...) {
    error = worded(std::current_exception());
  }
  FallbackWatch::instance().remove(this);
  inner_over_.store(true);
  end(error);
}

bool FallbackWork::wait(std::chrono::milliseconds timeout) {
  const WithoutGil nogil;
  const auto held = self();
  if (inner_future_) {
    wait_here(timeout);
  } else if (!Work::isCompleted()) {
    wait_inside(timeout);
  }
  Work::synchronize();  // functional collectives register a work until it has been waited for
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = exception_;
  }
  if (error) std::rethrow_exception(error);
  if (inner_future_) inner_->wait();  // is over: makes the caller's stream wait
  return true;
}

void FallbackWorks::add(const c10::intrusive_ptr<FallbackWork>& work) {
  const std::lock_guard lock(mutex_);
  std::erase_if(works_, [](const auto& weak) {
    const auto live = weak.lock();
    return !live || (live->isCompleted() && !live->inner_runs());
  });
  works_.emplace_back(work);
}

std::vector<c10::intrusive_ptr<FallbackWork>> FallbackWorks::live() {
  const std::lock_guard lock(mutex_);
  std::vector<c10::intrusive_ptr<FallbackWork>> found;
  for (const auto& weak : works_) {
    if (auto work = weak.lock()) found.push_back(std::move(work));
  }
  return found;
}

void FallbackWorks::fail_all(const std::string& reason) {
  for (const auto& work : live()) work->fail(reason);
}

bool FallbackWorks::any_runs() {
  const auto works = live();
  return std::any_of(works.begin(), works.end(),
                     [](const auto& work) { return work->inner_runs(); });
}

}  // namespace mcast::pg
