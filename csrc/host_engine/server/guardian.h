// Supervises an engine that runs in a child process. An engine that hangs is killed: its clients
// then see an end immediately instead of silence, and the supervisor of this process restarts it.
#pragma once

#include <atomic>
#include <functional>

#include "base/types.h"

namespace mcast::service {

// Measures how long a counter has not changed, for a watcher that checks it from time to time. At
// most `step` of the time between two checks counts: the cause of a late check may have stopped the
// other process too (a suspended machine, a debugger that stops both).
class StillWatch {
 public:
  explicit StillWatch(Nanos step) : step_(step) {}
  // Returns 0 before the first beat: the engine is still starting.
  Nanos look(uint64_t beats, Nanos now);

 private:
  const Nanos step_;
  uint64_t last_ = 0;
  Nanos looked_ = 0, still_ = 0;
};

// How long an engine may be still if its clients give it up after `silence`: a quarter, but never
// so short that one late beat counts as a hang.
Nanos guardian_limit(Nanos silence);

// Exit status of an engine that was killed because it hung. If it died of a signal, the status is
// 128 plus the signal's number, as in a shell.
inline constexpr int kStoodStill = 3;

// Runs `engine` in a child, which increments its beats at least ten times a second once it runs.
// Returns the exit status, in both processes. The caller has one thread. SIGTERM and SIGINT, which
// this blocks, are forwarded; if this process dies the child is killed.
int guarded(Nanos limit, const std::function<int(std::atomic<uint64_t>& beats)>& engine);

}  // namespace mcast::service
