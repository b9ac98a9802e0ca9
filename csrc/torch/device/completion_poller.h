// The threads that follow the copies of works to their end: one polls all of them, one checks
// whether the devices still work. One instance per process; its threads are started by the first
// work. After fork() the child has no work in flight and an instance of its own.
//
// Threads: every function from any thread; only close() blocks for long. Errors: none; a work that
// fails reports it itself.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/types.h"

namespace mcast::pg {

class DeviceCopies;

class CompletionPoller {
 public:
  static CompletionPoller& instance();
  CompletionPoller(const CompletionPoller&) = delete;
  CompletionPoller& operator=(const CompletionPoller&) = delete;

  // Polls `copies` until it is over. Has no effect after close().
  void add(std::shared_ptr<DeviceCopies> copies);
  // Call after a change: polls immediately.
  void notify();
  // Waits until no work is in flight, at most `limit`, then refuses new works. For exit.
  void close(Nanos limit);

 private:
  CompletionPoller() = default;
  ~CompletionPoller() = delete;
  static CompletionPoller*& current();

  void poll_loop();
  void check_loop();

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<std::shared_ptr<DeviceCopies>> added_;
  size_t in_flight_ = 0;
  bool notified_ = false;
  bool polls_ = false;   // poll_loop() has its thread
  bool checks_ = false;  // check_loop() has its thread
  bool closed_ = false;

  std::condition_variable gated_;
  // Works with a gate: added in the last period of check_loop(), and before.
  std::vector<std::weak_ptr<DeviceCopies>> young_, old_;
};

}  // namespace mcast::pg
