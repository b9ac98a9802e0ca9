// The loop: runs an iteration of the lane (runtime/lane_loop.h), and if no more can be done at
// once, sleeps in the transport until traffic, a wake-up or the next deadline. Signals are blocked
// on this thread, so that Ctrl-C reaches the threads that wait for results. When a lane stops it
// announces its end and keeps reading until its peers have received what was sent to them.
#include "runtime/lane_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/test_clock.h"

namespace mcast {
namespace {
constexpr Nanos kLongestSleep = kSecond;

}  // namespace

LaneThread::LaneThread(std::unique_ptr<Transport> transport, std::string name, int pin_cpu,
                       LaneAccounts accounts)
    : loop_(std::move(transport), std::move(accounts)),
      name_(std::move(name)),
      description_(loop_.lane().transport().describe()),
      pin_cpu_(pin_cpu) {
  thread_ = named_thread(name_, [this] { run(); });
}

bool LaneThread::push(Command command) {
  bool wake = false;
  if (!queue_.try_push(command, wake)) return false;
  if (wake) loop_.lane().transport().wake();
  return true;
}

bool LaneThread::call(const Command& command) {
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> future = done->get_future();
  if (!push([&command, done](Lane& lane, Nanos now) {
        command(lane, now);
        done->set_value();
      })) {
    return false;
  }
  future.wait();  // every accepted command runs, even while the lane stops
  return true;
}

void LaneThread::close_group(uint64_t tag, Nanos deadline, bool force, Closed done) {
  const bool pushed = push([this, tag, deadline, force, done](Lane&, Nanos) {
    loop_.close_group(tag, deadline, force, done);
  });
  if (!pushed) done(Status(Code::kClosed, "the engine is shut down"));
}

void LaneThread::run() {
  if (pin_cpu_ >= 0) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(static_cast<size_t>(pin_cpu_), &cpus);
    if (pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0) {
      log(LogLevel::kWarn, "cannot pin thread %s to CPU %d", name_.c_str(), pin_cpu_);
    }
  }
  Lane& lane = loop_.lane();
  for (;;) {
    Nanos now = monotonic_now();
    queue_.drain(batch_);
    const bool again = loop_.turn(batch_, now);
    if (stopping_.load(std::memory_order_acquire) && !loop_.closing()) {
      if (lane.transport().stream().close_peers(now) ||
          now >= stop_deadline_.load(std::memory_order_relaxed)) {
        break;
      }
      lane.transport().wait(5 * kMilli);
      continue;
    }
    if (again) continue;
    const Nanos next = loop_.deadline(now);
    now = monotonic_now();
    if (next <= now) continue;
    if (const Nanos pause = lane.coalesce(now); pause > 0 && pause < next - now) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
    } else {
      lane.transport().wait(test_clock::nap(std::min(next - now, kLongestSleep)));
    }
  }
  queue_.close(batch_);
  loop_.end(batch_, monotonic_now());
}

void LaneThread::stop(Nanos patience) {
  if (stopping_.load()) return;
  stop_deadline_.store(monotonic_now() + patience, std::memory_order_relaxed);
  if (stopping_.exchange(true)) return;
  loop_.lane().transport().wake();
  thread_.join();
}

}  // namespace mcast
