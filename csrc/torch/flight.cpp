// A queue of bounded length. After fork() the child begins with an empty one.
#include "flight.h"

#include <c10/util/ApproximateClock.h>
#include <pthread.h>

#include <cstdlib>

#include "background.h"

namespace mcast::pg {
namespace {

constexpr long kMostEntries = 2000;  // as torch

size_t buffer_size() {
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr || *text == '\0') continue;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end == '\0' && value >= 0) return static_cast<size_t>(value);
  }
  return kMostEntries;
}

// Analysers put the entries of several hosts in order by it.
int64_t wall_clock() { return c10::getTimeSinceEpoch(); }

std::function<void()>& timeout_action() {
  static auto* const action = new std::function<void()>;  // lanes may ask at exit
  return *action;
}

}  // namespace

void FlightRecorder::on_timeout(std::function<void()> action) {
  timeout_action() = std::move(action);
}

void FlightRecorder::timed_out() {
  static std::atomic<bool> pending{false};  // many operations time out at once
  if (!timeout_action() || pending.exchange(true)) return;
  Background::instance().run("the dump of the flight recorder", [] {
    pending.store(false);
    timeout_action()();
  });
}

FlightRecorder::FlightRecorder() : most_(buffer_size()) {}

FlightRecorder& FlightRecorder::instance() {
  static FlightRecorder* recorder = [] {
    pthread_atfork(nullptr, nullptr, [] { recorder = new FlightRecorder; });
    return new FlightRecorder;
  }();
  return *recorder;
}

void FlightRecorder::add(const FlightPtr& entry) {
  entry->created_ns = wall_clock();
  const std::lock_guard lock(mutex_);
  entry->id = next_++;
  entries_.push_back(entry);
  if (entries_.size() > most_) entries_.pop_front();
}

void FlightRecorder::end(FlightEntry& entry, bool ok) {
  entry.failed.store(!ok);
  entry.ended_ns.store(wall_clock());
}

std::vector<FlightPtr> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

}  // namespace mcast::pg
