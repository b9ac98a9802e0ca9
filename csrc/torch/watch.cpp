// One thread asks every staged work in turn. There is nothing to sleep on: the device announces its
// progress only by words of memory or events that must be asked for. So the thread naps between
// rounds, briefly after something has happened, longer the longer nothing has, and sleeps for good
// while nothing is in flight.
//
// A device that has failed writes no words. A second thread therefore asks it about works with a
// gate that stay in flight; such a call may block for as long as gates are closed, so the first
// must not make it.
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "staging.h"

namespace mcast::pg::watch {
namespace {

using std::chrono::microseconds;
constexpr microseconds kShortNap(20);
constexpr microseconds kLongNap(500);
constexpr int kShortNaps = 100;  // before they grow
constexpr std::chrono::milliseconds kCheckPeriod(500);

struct Watch {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Staged>> added;
  size_t in_flight = 0;
  bool poked = false;
  bool started = false;
  bool closed = false;

  std::condition_variable gated;
  std::vector<std::weak_ptr<Staged>> young, old;  // with a gate; those of the last period, others
  bool checks = false;

  void check_loop() {
    pthread_setname_np(pthread_self(), "mcast-check");
    for (;;) {
      {
        std::unique_lock lock(mutex);
        gated.wait(lock, [&] { return !young.empty() || !old.empty(); });
      }
      std::this_thread::sleep_for(kCheckPeriod);
      std::vector<std::shared_ptr<Staged>> now;
      {
        const std::lock_guard lock(mutex);
        for (const auto& weak : old) {
          if (auto staged = weak.lock(); staged && !staged->over()) now.push_back(staged);
        }
        old.assign(now.begin(), now.end());
        old.insert(old.end(), young.begin(), young.end());
        young.clear();
      }
      for (const auto& staged : now) staged->check();
    }
  }

  void loop() {
    pthread_setname_np(pthread_self(), "mcast-stage");
    std::vector<std::shared_ptr<Staged>> works;
    int quiet = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        in_flight = works.size() + added.size();
        if (in_flight == 0) {
          changed.notify_all();
          changed.wait(lock, [&] { return !added.empty(); });
        } else if (added.empty() && !poked) {
          const auto nap = quiet < kShortNaps ? kShortNap : kShortNap * (quiet / kShortNaps + 1);
          changed.wait_for(lock, std::min(nap, kLongNap));
        }
        if (poked || !added.empty()) quiet = 0;
        poked = false;
        for (auto& staged : added) works.push_back(std::move(staged));
        added.clear();
      }
      const size_t before = works.size();
      std::erase_if(works, [](const auto& staged) { return staged->poll(); });
      quiet = works.size() < before ? 0 : quiet + 1;
    }
  }
};

Watch*& instance() {
  static Watch* current = [] {
    pthread_atfork(nullptr, nullptr, [] { instance() = new Watch; });
    return new Watch;
  }();
  return current;
}

}  // namespace

void add(std::shared_ptr<Staged> staged) {
  Watch& watch = *instance();
  std::lock_guard lock(watch.mutex);
  if (watch.closed) return;  // the process ends; the engine has refused the operation
  if (!watch.started) {
    std::thread([&watch] { watch.loop(); }).detach();
    watch.started = true;
  }
  if (staged->gated()) {
    if (!std::exchange(watch.checks, true)) {
      std::thread([&watch] { watch.check_loop(); }).detach();
    }
    watch.young.push_back(staged);
    watch.gated.notify_one();
  }
  watch.added.push_back(std::move(staged));
  watch.in_flight++;
  watch.changed.notify_all();
}

void notify() {
  Watch& watch = *instance();
  std::lock_guard lock(watch.mutex);
  watch.poked = true;
  watch.changed.notify_all();
}

void close(Nanos limit) {
  Watch& watch = *instance();
  std::unique_lock lock(watch.mutex);
  watch.changed.wait_for(lock, std::chrono::nanoseconds(limit),
                         [&] { return watch.in_flight == 0; });
  watch.closed = true;
}

}  // namespace mcast::pg::watch
