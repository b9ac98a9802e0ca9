// One thread polls the copies of every work in turn. There is no event to sleep on: the device
// reports its progress only by words of memory, or by events that must be queried. So the thread
// polls at an interval, which is short after progress and grows while there is none. While no work
// is in flight, the thread sleeps until there is one.
//
// A device that has failed writes no words. A second thread therefore queries it about works with a
// gate that stay in flight; such a call may block as long as gates are closed, so the first thread
// must not make it.
#include "device/completion_poller.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "device/device_copies.h"

namespace mcast::pg {
namespace {

using std::chrono::microseconds;
constexpr microseconds kShortestInterval(20);
constexpr microseconds kLongestInterval(500);
constexpr int kRoundsPerStep = 100;  // idle rounds after which the interval grows by the shortest
constexpr std::chrono::milliseconds kCheckPeriod(500);

microseconds poll_interval(int quiet_rounds) {
  return std::min(kShortestInterval * (quiet_rounds / kRoundsPerStep + 1), kLongestInterval);
}

}  // namespace

CompletionPoller*& CompletionPoller::current() {
  static CompletionPoller* poller = [] {
    pthread_atfork(nullptr, nullptr, [] { current() = new CompletionPoller; });
    return new CompletionPoller;
  }();
  return poller;
}

CompletionPoller& CompletionPoller::instance() { return *current(); }

void CompletionPoller::poll_loop() {
  pthread_setname_np(pthread_self(), "mcast-device");
  std::vector<std::shared_ptr<DeviceCopies>> works;
  int quiet_rounds = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      in_flight_ = works.size() + added_.size();
      if (in_flight_ == 0) {
        changed_.notify_all();
        changed_.wait(lock, [&] { return !added_.empty(); });
      } else if (added_.empty() && !notified_) {
        changed_.wait_for(lock, poll_interval(quiet_rounds));
      }
      if (notified_ || !added_.empty()) quiet_rounds = 0;
      notified_ = false;
      for (auto& copies : added_) works.push_back(std::move(copies));
      added_.clear();
    }
    const size_t before = works.size();
    std::erase_if(works, [](const auto& copies) { return copies->poll(); });
    quiet_rounds = works.size() < before ? 0 : quiet_rounds + 1;
  }
}

void CompletionPoller::check_loop() {
  pthread_setname_np(pthread_self(), "mcast-check");
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      gated_.wait(lock, [&] { return !young_.empty() || !old_.empty(); });
    }
    std::this_thread::sleep_for(kCheckPeriod);
    std::vector<std::shared_ptr<DeviceCopies>> checked;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& weak : old_) {
        if (auto copies = weak.lock(); copies && !copies->over()) checked.push_back(copies);
      }
      old_.assign(checked.begin(), checked.end());
      old_.insert(old_.end(), young_.begin(), young_.end());
      young_.clear();
    }
    for (const auto& copies : checked) copies->check();
  }
}

void CompletionPoller::add(std::shared_ptr<DeviceCopies> copies) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;  // the process is ending; the engine has refused the operation
  if (!std::exchange(polls_, true)) std::thread([this] { poll_loop(); }).detach();
  if (copies->gated()) {
    if (!std::exchange(checks_, true)) std::thread([this] { check_loop(); }).detach();
    young_.push_back(copies);
    gated_.notify_one();
  }
  added_.push_back(std::move(copies));
  in_flight_++;
  changed_.notify_all();
}

void CompletionPoller::notify() {
  const std::lock_guard lock(mutex_);
  notified_ = true;
  changed_.notify_all();
}

void CompletionPoller::close(Nanos limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(limit), [&] { return in_flight_ == 0; });
  closed_ = true;
}

}  // namespace mcast::pg
