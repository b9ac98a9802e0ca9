// One thread per process for what must not run on a lane thread when an operation ends: copies to
// tensors that could not be written directly, futures and their callbacks (which may take Python's
// lock), and the release of the last reference to a tensor (which may run Python too).
//
// Threads: run() and dispose() from any thread, never blocking. Started by the first task. After
// fork() the child starts with an empty queue and its own thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace mcast::pg {

class Background {
 public:
  static Background& instance();

  // Runs `task` soon, tasks in the order of the calls. A task must not throw. After close() tasks
  // are neither run nor destroyed: the interpreter they may need is going away.
  void run(std::function<void()> task);
  // Waits until every task so far has run, then refuses new ones. Call without Python's lock.
  void close();

 private:
  struct Impl;
  Background();
  ~Background() = delete;
  Impl* impl_;
};

// Drops `reference` on the background thread.
template <typename Pointer>
void dispose_later(Pointer reference) {
  auto last = std::make_shared<Pointer>(std::move(reference));
  Background::instance().run([held = std::move(last)]() mutable { held.reset(); });
}

// Drops `reference` (an intrusive_ptr of something without a Python object) there if it is the last
// one; here otherwise.
template <typename Pointer>
void dispose(Pointer reference) {
  if (reference.use_count() <= 1) dispose_later(std::move(reference));
}

}  // namespace mcast::pg
