// The loop: poll the station, then sleep in the transport until traffic, a wake-up or the next
// deadline.
//
// The report is copied a few times a second, and whenever the thread goes to sleep, so that readers
// and the station never wait for each other.
#include "aggregation/server/station_thread.h"

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "base/signals_blocked.h"
#include "base/test_clock.h"

namespace mcast::service {
namespace {

constexpr Nanos kLongestSleep = kSecond;
constexpr Nanos kReportEvery = 100 * kMilli;
constexpr Nanos kGoodbyeStep = 5 * kMilli;

Nanos thread_cpu_time() {
  timespec used{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<Nanos>(used.tv_sec) * kSecond + used.tv_nsec;
}

}  // namespace

StationThread::StationThread(StationSpec spec, std::unique_ptr<Transport> transport)
    : spec_(std::move(spec)),
      station_(spec_, std::move(transport), monotonic_now()),
      report_(station_.report(monotonic_now())) {
  thread_ = named_thread(spec_.name, [this] { loop(); });
}

StationThread::~StationThread() {
  end(0);
  thread_.join();
}

void StationThread::end(Nanos patience) {
  Nanos nobody = kNever;
  if (end_at_.compare_exchange_strong(nobody, monotonic_now() + patience)) {
    station_.transport().wake();
  }
}

std::optional<std::string> StationThread::ended() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return ended_;
}

StationReport StationThread::report() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return report_;
}

void StationThread::loop() {
  try {
    while (end_at_.load() == kNever && !station_.ended()) {
      if (!turn()) sleep();
    }
  } catch (const std::exception& error) {  // no memory: affects this job only
    station_.fail(std::string("its station has failed: ") + error.what());
  }
  station_.leave();  // its memory is given back before the goodbye, which may take a while
  if (station_.ended()) {
    {
      const std::lock_guard<std::mutex> held(mutex_);
      ended_ = station_.ended();
    }
    spec_.on_end();
  }
  say_goodbye();
  publish(monotonic_now());
  finished_.store(true);
  spec_.on_end();
}

bool StationThread::turn() {
  now_ = monotonic_now();
  const bool events = station_.turn(now_);
  if (station_.changed() && now_ - published_ >= kReportEvery) publish(now_);
  return events;
}

void StationThread::sleep() {
  Nanos until = std::min(station_.deadline(), now_ + kLongestSleep);
  if (station_.changed()) until = std::min(until, published_ + kReportEvery);
  if (const Nanos now = monotonic_now(); until > now) {
    station_.transport().wait(test_clock::nap(until - now));
  }
}

void StationThread::say_goodbye() {
  while (!station_.say_goodbye(monotonic_now()) && monotonic_now() < end_at_.load()) {
    station_.transport().wait(kGoodbyeStep);
  }
}

void StationThread::publish(Nanos now) {
  published_ = now;
  StationReport report = station_.report(now);
  report.cpu = thread_cpu_time();
  const std::lock_guard<std::mutex> held(mutex_);
  report_ = std::move(report);
}

}  // namespace mcast::service
