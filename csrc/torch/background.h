// Threads of the process for tasks that must not run on a lane thread when an operation ends.
//
// - in_order(): one thread, for copies to tensors that could not be written directly (two
//   operations may write to one tensor) and the release of the last reference to a tensor (which
//   may run Python). Such a task never waits for an operation.
// - run(): for tasks that may wait for anything, including other operations: futures, whose
//   callbacks belong to the user, and the end of groups. A task that waits does not keep others
//   from running for long, and never delays the end of operations posted by a task, because that
//   task may be waiting for it.
//
// Threads: every function from any thread; only close() blocks. Threads are started by the first
// task. After fork() the child starts with empty queues and its own threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/types.h"

namespace mcast::pg {

class Background {
 public:
  static Background& instance();

  // A task must not throw. After close() tasks are neither run nor destroyed: the interpreter that
  // they may need is shutting down.
  void in_order(std::function<void()> task);
  // Tasks run one after another in the order of the calls, unless one takes long. `nested`: runs
  // immediately, whatever else runs. `what` names the task in a log line.
  void run(std::string what, std::function<void()> task, bool nested = false);
  // Returns true if the calling thread is inside a task of run().
  static bool in_task();
  // Waits until every task has run, at most `limit`, then refuses new ones and logs the names of
  // those that still run. Call without Python's lock.
  void close(Nanos limit);

 private:
  struct Impl;
  Background();
  ~Background() = delete;
  Impl* impl_;
};

// Drops `reference` on the thread of in_order().
template <typename Pointer>
void dispose_later(Pointer reference) {
  auto last = std::make_shared<Pointer>(std::move(reference));
  Background::instance().in_order([held = std::move(last)]() mutable { held.reset(); });
}

// Drops `reference` (an intrusive_ptr of an object without a Python object) there if it is the last
// one; otherwise on this thread.
template <typename Pointer>
void dispose(Pointer reference) {
  if (reference.use_count() <= 1) dispose_later(std::move(reference));
}

}  // namespace mcast::pg
