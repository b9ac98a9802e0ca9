// The "hardware" of the fake device: streams run by threads, in order, after random delays, and
// events. Memory is the host's, so work that runs too early or too late sees wrong bytes.
//
// A stream holds at most kDepth commands: enqueuing another one waits until there is room, as with
// CUDA. After a fault no command runs any more, and every call throws Fault.
//
// Tests control it: they can limit the number of copies between device and pinned memory, and hold
// streams. It counts the waits for gates and the calls that would have broken a graph capture.
//
// FAKE_DEVICE_QUEUES=n in the environment: streams share n hardware queues by their number, and
// the command at the head of a queue blocks all behind it. Unset: each has its own queue.
#pragma once

#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace fake {

constexpr int kPool = 32;  // streams 1..32: pool, 33..64: of high priority; 0: default
constexpr size_t kDepth = 1024;

// Its text is like torch's for CUDA errors: with more lines, and a backtrace.
struct Fault : c10::Error {
  Fault()
      : c10::Error({__func__, __FILE__, __LINE__},
                   "fake device: a kernel has faulted\nThe stacktrace below might be incorrect.") {}
};

// A point in a stream.
struct Mark {
  bool reached = false;
};
using MarkPtr = std::shared_ptr<Mark>;

// One lock and one condition for everything: it is a fake.
struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  // Copies between device and pinned memory: done so far and allowed, [0] to the host, [1] from it.
  int64_t copies[2] = {0, 0};
  int64_t allowed[2] = {INT64_MAX, INT64_MAX};
  int64_t open_holds = 0;
  int64_t gates = 0;   // waits enqueued
  int64_t pooled = 0;  // streams taken from the pool
  bool faulted = false;
  int64_t asked = 0;              // calls that query the progress of the device
  int64_t blocked = 0;            // of these, how many wait now, while ...
  bool block_asking = false;      // ... they have to
  bool capturing = false;         // some thread captures a graph, in CUDA's global mode ...
  int64_t broken_captures = 0;    // ... which these calls would have broken
  int64_t captured = -1;          // the stream whose commands go into a graph
  int64_t captured_commands = 0;  // commands that it was given meanwhile

  void wait_until(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    changed.wait(lock, condition);
  }
  void change(const std::function<void()>& step) {
    const std::lock_guard lock(mutex);
    step();
    changed.notify_all();
  }
};
Device& device();

void enqueue(int64_t stream, std::function<void()> task);
bool idle(int64_t stream);
MarkPtr record(int64_t stream);
void block(const MarkPtr& mark, int64_t stream);
void wait(const MarkPtr& mark);  // on a stream
void sync(const MarkPtr& mark);  // on the host
bool reached(const MarkPtr& mark);

int64_t current_stream();
int64_t exchange_stream(int64_t stream);

}  // namespace fake
