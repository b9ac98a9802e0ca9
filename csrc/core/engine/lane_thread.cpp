// The loop: run commands, poll the lane, serve groups that are closing, and when nothing more can
// be done at once sleep in the transport until traffic, a wake-up or the next deadline. Signals are
// blocked on this thread, so that Ctrl-C reaches the threads that wait for results. When a lane
// stops it says goodbye and keeps reading until its peers have what was sent to them.
#include "engine/lane_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/signals_blocked.h"
#include "collective/closing.h"
#include "engine/clock.h"

namespace mcast {
namespace {
constexpr Nanos kLongestSleep = kSecond;

}  // namespace

LaneThread::LaneThread(std::unique_ptr<Transport> transport, std::string name, int pin_cpu,
                       std::shared_ptr<std::atomic<uint64_t>> arrived)
    : lane_(std::move(transport), std::move(arrived)),
      name_(std::move(name)),
      description_(lane_.transport().describe()),
      pin_cpu_(pin_cpu) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { loop(); });
}

bool LaneThread::push(Command command) {
  bool wake = false;
  if (!queue_.try_push(command, wake)) return false;
  if (wake) lane_.transport().wake();
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
  future.wait();  // every accepted command runs, also while the lane stops
  return true;
}

void LaneThread::close_group(uint64_t tag, Nanos deadline, bool force, Closed done) {
  const bool pushed = push([this, tag, deadline, force, done](Lane&, Nanos) {
    closing_.push_back({tag, deadline, force, done});
  });
  if (!pushed) done(Status(Code::kClosed, "the engine is shut down"));
}

void LaneThread::serve_closing(Nanos now) {
  for (size_t i = 0; i < closing_.size();) {
    const Closing c = closing_[i];
    LaneGroup* group = lane_.find_group(c.tag);
    const bool over =
        group == nullptr || (c.force ? group->core().confirmed_so_far() : group->core().quiet());
    if (!over && now < c.deadline) {
      i++;
      continue;
    }
    closing_.erase(closing_.begin() + static_cast<std::ptrdiff_t>(i));
    Status outcome;
    if (group != nullptr) {
      GroupCore& core = group->core();
      core.fail_early(now);  // the reason is known: it is no matter of this member's leaving
      if (const std::string oldest = core.unfinished_text(now); !oldest.empty()) {
        const LeftInFlight left = left_in_flight(core.params().self, core.waiting(), c.force);
        core.fail(left.for_others, core.params().self, now);
        outcome = left.here.with_context(oldest);
      }
      group->core().leave(now);
      lane_.remove_group(c.tag);
    }
    c.done(outcome);
  }
}

void LaneThread::loop() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  if (pin_cpu_ >= 0) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(static_cast<size_t>(pin_cpu_), &cpus);
    if (pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0) {
      log(LogLevel::kWarn, "cannot pin thread %s to CPU %d", name_.c_str(), pin_cpu_);
    }
  }
  for (;;) {
    Nanos now = monotonic_now();
    queue_.drain(batch_);
    for (Command& command : batch_) command(lane_, now);
    const bool ran = !batch_.empty();
    batch_.clear();  // captured memory is released here, not at the next drain
    const bool busy = lane_.poll(now);
    serve_closing(now);
    if (stopping_.load(std::memory_order_acquire) && closing_.empty()) {
      if (lane_.transport().stream().close_peers(now) ||
          now >= stop_deadline_.load(std::memory_order_relaxed)) {
        break;
      }
      lane_.transport().wait(5 * kMilli);
      continue;
    }
    if (busy || ran) continue;
    Nanos next = lane_.deadline(now);
    for (const Closing& c : closing_) next = std::min(next, c.deadline);
    now = monotonic_now();
    if (next <= now) continue;
    if (const Nanos pause = lane_.coalesce(now); pause > 0 && pause < next - now) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
    } else {
      lane_.transport().wait(std::min(next - now, kLongestSleep));
    }
  }
  // Commands accepted until here still run (posts find their group gone and say so).
  queue_.close(batch_);
  for (Command& command : batch_) command(lane_, monotonic_now());
  batch_.clear();
  while (lane_.deliver()) {
  }
  for (const Closing& c : closing_) {
    c.done(Status(Code::kClosed, "the engine is shut down"));
  }
  closing_.clear();
}

void LaneThread::stop(Nanos patience) {
  if (stopping_.load()) return;
  stop_deadline_.store(monotonic_now() + patience, std::memory_order_relaxed);
  if (stopping_.exchange(true)) return;
  lane_.transport().wake();
  thread_.join();
}

}  // namespace mcast
