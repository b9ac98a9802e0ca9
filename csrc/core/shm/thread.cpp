// Replies to peers' questions, gives every lane a turn, and sleeps at the bell until a peer rings
// or a limit or a check of the peers is due. A thread that has had nothing to watch for a while
// sleeps without a limit, and the next post rings it; before that posts need not ring, since it
// looks by itself every tick.
#include "shm/thread.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "base/signals_blocked.h"
#include "shm/futex.h"
#include "shm/lane.h"

namespace mcast {
namespace {

constexpr Nanos kWarm = 5 * kSecond;

}  // namespace

HostThread::HostThread(HostMailbox& mailbox, size_t lane, HostClock clock)
    : mailbox_(mailbox), lane_(lane), clock_(clock) {}

Status HostThread::start() {
  try {
    thread_ = named_thread(lane_ == 0 ? "mcast-host0" : "mcast-host1", [this] { loop(); });
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, std::string("cannot start a thread: ") + error.what());
  }
  return {};
}

void HostThread::add(const std::shared_ptr<HostLane>& lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  lanes_.push_back(lane);
}

void HostThread::remove(const HostLane* lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  lanes_.erase(
      std::remove_if(lanes_.begin(), lanes_.end(), [&](const auto& l) { return l.get() == lane; }),
      lanes_.end());
}

void HostThread::ring() { mcast::ring(mailbox_.bells[lane_].rings); }

void HostThread::warm_up() {
  if (!warm_.load(std::memory_order_seq_cst)) ring();
}

void HostThread::answer() {
  if (lane_ != 0) return;
  const uint64_t asked = mailbox_.asked.load(std::memory_order_seq_cst);
  uint64_t answered = mailbox_.answered.load(std::memory_order_relaxed);
  while (answered < asked && !mailbox_.answered.compare_exchange_weak(answered, asked)) {
  }
}

void HostThread::stop() {
  if (stopping_.exchange(true)) return;
  ring();
  if (thread_.joinable()) thread_.join();
}

void HostThread::loop() {
  auto& rings = mailbox_.bells[lane_].rings;
  std::vector<std::shared_ptr<HostLane>> lanes;
  Nanos active = clock_();
  while (!stopping_.load(std::memory_order_acquire)) {
    const uint32_t seen = rings.load(std::memory_order_seq_cst);
    answer();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      lanes = lanes_;
    }
    Nanos next = kNever;
    for (const auto& lane : lanes) next = std::min(next, lane->turn());
    lanes.clear();
    const Nanos now = clock_();
    if (next != kNever) active = now;
    next = std::min(next, now + kHostTick);
    if (now - active > kWarm) {
      // This last look sees a post that did not ring because the thread was warm.
      if (warm_.exchange(false, std::memory_order_seq_cst)) continue;
      next = kNever;
    }
    futex_wait(rings, seen, next == kNever ? kNever : next - now);
    if (!warm_.load(std::memory_order_relaxed)) {
      warm_.store(true, std::memory_order_seq_cst);
      active = clock_();
    }
  }
}

}  // namespace mcast
