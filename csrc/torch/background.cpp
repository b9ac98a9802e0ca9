// A queue, a mutex, a condition variable and a thread that lives as long as the process. The
// instance is leaked: tasks may arrive from lane threads while static destructors run.
//
// fork() keeps the memory but not the thread, and possibly a locked mutex; the child therefore gets
// a new Impl and never looks at the old one, whose tasks belong to operations of the parent.
#include "background.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace mcast::pg {

struct Background::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool started = false;
  bool busy = false;
  bool closed = false;

  void loop() {
    pthread_setname_np(pthread_self(), "mcast-finish");
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !queue.empty(); });
      std::function<void()> task = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      task();
      task = nullptr;  // destroyed here, outside the lock: it may own tensors
      lock.lock();
      busy = false;
      if (queue.empty()) changed.notify_all();
    }
  }
};

Background::Background() : impl_(new Impl) {}

Background& Background::instance() {
  static Background* const background = [] {
    auto* made = new Background;
    pthread_atfork(nullptr, nullptr, [] { instance().impl_ = new Impl; });
    return made;
  }();
  return *background;
}

void Background::run(std::function<void()> task) {
  Impl& impl = *impl_;
  std::lock_guard lock(impl.mutex);
  if (impl.closed) {
    new std::function<void()>(std::move(task));  // leaked on purpose, see run() in the header
    return;
  }
  if (!impl.started) {
    std::thread([&impl] { impl.loop(); }).detach();
    impl.started = true;
  }
  impl.queue.push_back(std::move(task));
  impl.changed.notify_all();
}

void Background::close() {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  impl.changed.wait(lock, [&] { return impl.queue.empty() && !impl.busy; });
  impl.closed = true;
}

}  // namespace mcast::pg
