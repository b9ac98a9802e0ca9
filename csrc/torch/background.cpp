// Three crews, each a queue with threads. The crew of in_order() has one thread. The others grow:
// while tasks are queued, one thread is idle and watches them (the code that queues or takes a task
// ensures this). It takes the next task when every running task has run for longer than the crew's
// time limit. So callbacks run one after another as with a single thread, in the same order on all
// ranks, and a callback that waits delays the others no longer than that. Usually it waits for an
// operation that it has posted itself: the ends of those have a crew with a time limit of zero.
// Idle threads except one end after a while.
//
// The instance is leaked: tasks may arrive from lane threads while static destructors run. fork()
// keeps the memory but not the threads, and possibly a locked mutex; the child therefore gets a new
// Impl and never looks at the old one, whose tasks belong to operations of the parent.
#include "background.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/log.h"

namespace mcast::pg {
namespace {

using Clock = std::chrono::steady_clock;
// Longer than threads wait for Python's lock (5 ms); otherwise short callbacks would run side by
// side.
constexpr std::chrono::milliseconds kPatience(20);
constexpr std::chrono::seconds kIdleLimit(10);
// Every bucket of a large model may have a callback that waits. A thread that waits costs some
// kilobytes.
constexpr size_t kMostWaiting = 1024;
constexpr size_t kMostNamed = 8;
constexpr Nanos kLastWait = kSecond;

struct Task {
  std::string what;
  std::function<void()> body;
  unsigned long thread = 0;  // the thread that runs it, by Python's id
};

// Guarded by Impl::mutex.
struct Crew {
  Crew(const char* thread_name, size_t most_threads, Clock::duration for_each)
      : name(thread_name), most(most_threads), patience(for_each) {}

  const char* const name;
  const size_t most;  // maximum number of threads
  const Clock::duration patience;
  std::condition_variable changed;
  std::deque<Task> queue;
  std::vector<const Task*> running;  // the most recently started is last
  Clock::time_point young_until;     // time at which the last one has run for `patience`
  size_t threads = 0;
  size_t idle = 0;

  bool quiet() const { return queue.empty() && running.empty(); }
};

thread_local bool t_in_task = false;

// Raises SystemExit in threads that run Python code. A thread that returned to an interpreter that
// is gone would be ended by it in the middle of C++ code, which aborts the process (before Python
// 3.14).
void interrupt(const std::vector<unsigned long>& threads) {
  if (Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire gil;
  for (const unsigned long thread : threads) PyThreadState_SetAsyncExc(thread, PyExc_SystemExit);
}

}  // namespace

struct Background::Impl {
  std::mutex mutex;
  std::condition_variable ended;  // a task has ended
  Crew ordered{"mcast-finish", 1, {}};
  Crew callbacks{"mcast-future", kMostWaiting, kPatience};
  Crew nested{"mcast-nested", kMostWaiting, {}};
  const std::array<Crew*, 3> crews{&ordered, &callbacks, &nested};
  bool full_reported = false;
  bool closed = false;

  std::vector<unsigned long> report() const;

  void push(Crew& crew, Task task) {
    const std::lock_guard lock(mutex);
    if (closed) {
      new Task(std::move(task));  // leaked on purpose, see in_order() in the header
      return;
    }
    crew.queue.push_back(std::move(task));
    look_after(crew);
    crew.changed.notify_one();
  }

  // A task is queued: some thread must watch it.
  void look_after(Crew& crew) {
    if (crew.idle > 0) return;
    if (crew.threads == crew.most) {
      if (crew.most > 1 && !std::exchange(full_reported, true)) {
        log(LogLevel::kWarn,
            "%zu callbacks of futures run or wait at once, which is the limit; others start when "
            "one of them ends",
            crew.most);
      }
      return;
    }
    try {
      std::thread([this, &crew] { loop(crew); }).detach();
      crew.threads++;
      crew.idle++;  // it will be idle, and no other thread needs to be started
    } catch (const std::system_error& error) {
      log(LogLevel::kError, "cannot start a thread that completes operations: %s", error.what());
    }
  }

  void loop(Crew& crew) {
    pthread_setname_np(pthread_self(), crew.name);
    t_in_task = &crew != &ordered;
    std::unique_lock lock(mutex);
    while (next(crew, lock)) {
      Task task = std::move(crew.queue.front());
      task.thread = PyThread_get_thread_ident();
      crew.queue.pop_front();
      crew.idle--;
      crew.running.push_back(&task);
      crew.young_until = Clock::now() + crew.patience;
      if (!crew.queue.empty()) look_after(crew);
      lock.unlock();
      task.body();
      task.body = nullptr;  // destroyed here, outside the lock: it may own tensors
      lock.lock();
      if (crew.running.back() == &task) crew.young_until = {};
      std::erase(crew.running, &task);
      crew.idle++;
      ended.notify_all();
    }
    crew.idle--;
    crew.threads--;
  }

  // Waits, as an idle thread, until it is time for the first task; returns false if this thread may
  // end.
  bool next(Crew& crew, std::unique_lock<std::mutex>& lock) {
    for (;;) {
      if (closed) {
        crew.changed.wait(lock);  // without a time limit
      } else if (!crew.queue.empty()) {
        if (crew.running.empty() || Clock::now() >= crew.young_until) return true;
        crew.changed.wait_until(lock, crew.young_until);
      } else if (crew.idle == 1) {
        crew.changed.wait(lock);
      } else if (crew.changed.wait_for(lock, kIdleLimit) == std::cv_status::timeout &&
                 crew.queue.empty() && crew.idle > 1) {
        return false;
      }
    }
  }
};

// Logs the tasks that still run at the end of the process; returns the threads that run them.
std::vector<unsigned long> Background::Impl::report() const {
  std::vector<unsigned long> threads;
  std::string names;
  size_t queued = 0;
  for (const Crew* crew : crews) {
    queued += crew->queue.size();
    for (const Task* task : crew->running) {
      if (threads.size() < kMostNamed) names += (names.empty() ? "" : "; ") + task->what;
      threads.push_back(task->thread);
    }
  }
  log(LogLevel::kWarn, "the process ends although %zu task(s) still run and %zu are queued: %s%s",
      threads.size(), queued, names.c_str(), threads.size() > kMostNamed ? "; ..." : "");
  return threads;
}

Background::Background() : impl_(new Impl) {}

Background& Background::instance() {
  static Background* const background = [] {
    auto* made = new Background;
    pthread_atfork(nullptr, nullptr, [] { instance().impl_ = new Impl; });
    return made;
  }();
  return *background;
}

void Background::in_order(std::function<void()> task) {
  impl_->push(impl_->ordered, {"copies and releases of tensors", std::move(task)});
}

void Background::run(std::string what, std::function<void()> task, bool nested) {
  impl_->push(nested ? impl_->nested : impl_->callbacks, {std::move(what), std::move(task)});
}

bool Background::in_task() { return t_in_task; }

void Background::close(Nanos limit) {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  const auto end = [&](Nanos within) {
    return impl.ended.wait_for(lock, std::chrono::nanoseconds(within), [&] {
      return std::all_of(impl.crews.begin(), impl.crews.end(),
                         [](const Crew* crew) { return crew->quiet(); });
    });
  };
  if (!end(limit)) {
    const std::vector<unsigned long> threads = impl.report();
    lock.unlock();
    interrupt(threads);
    lock.lock();
    end(kLastWait);
  }
  impl.closed = true;
}

}  // namespace mcast::pg
