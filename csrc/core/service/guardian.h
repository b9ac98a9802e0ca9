// Watches an engine that runs in a child process. One that stands still is killed: its clients then
// see an end at once, instead of a silence, and whoever supervises this process starts it again.
#pragma once

#include <atomic>
#include <functional>

#include "base/types.h"

namespace mcast::service {

// How long something has not beaten, as who looks now and then can tell. Of the time between two
// looks at most `step` counts: what kept the watcher from looking may have kept the other from
// beating (a suspended machine, a debugger that stops both).
class StillWatch {
 public:
  explicit StillWatch(Nanos step) : step_(step) {}
  // 0 before the first beat: it is being started.
  Nanos look(uint64_t beats, Nanos now);

 private:
  const Nanos step_;
  uint64_t last_ = 0;
  Nanos looked_ = 0, still_ = 0;
};

// How long an engine may be still whose clients give it up after `silence`: a quarter, but never so
// short that one beat which comes late is a hang.
Nanos guardian_limit(Nanos silence);

// The exit status of an engine that was killed because it stood still. One that died of a signal
// gives 128 and its number, as in a shell.
inline constexpr int kStoodStill = 3;

// Runs `engine` in a child, which counts its beats up at least ten times a second once it runs.
// Returns in both processes, with their exit status. The caller has one thread. SIGTERM and SIGINT,
// which this blocks, are handed on; if this process dies the child is killed.
int guarded(Nanos limit, const std::function<int(std::atomic<uint64_t>& beats)>& engine);

}  // namespace mcast::service
