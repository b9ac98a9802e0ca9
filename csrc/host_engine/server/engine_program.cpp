// SIGTERM and SIGINT give clients some time to leave; a signal that arrives a second later, or
// after that, ends the engine immediately. (A signal to a group of processes reaches guardian and
// engine, and the guardian forwards its own: that is one request, not two.)
#include "host_engine/server/engine_program.h"

#include <signal.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "host_engine/server/guardian.h"

namespace mcast::service {
namespace {

constexpr Nanos kOneWish = kSecond;

int serve(const HostEngineOptions& options, const std::function<void()>& listens) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  auto started = HostEngine::start(options);
  if (!started.ok()) {
    log(LogLevel::kError, "%s", started.status().message().c_str());
    return 1;
  }
  HostEngine& engine = **started;
  log(LogLevel::kInfo, "engine listens at %s%s", options.path.c_str(),
      in_words(engine.security()).c_str());
  listens();
  Nanos asked = kNever;
  while (!engine.over()) {
    const timespec pause{0, 50'000'000};
    if (sigtimedwait(&signals, nullptr, &pause) <= 0) continue;
    const Nanos now = monotonic_now();
    const bool again = asked != kNever && now - asked > kOneWish;
    if (asked == kNever) asked = now;
    engine.drain(again ? 0 : options.goodbye);
  }
  return 0;
}

}  // namespace

int run_engine(HostEngineOptions options, const std::function<void()>& listens) {
  if (!options.guardian) return serve(options, listens);
  return guarded(guardian_limit(options.limits.silence), [&](std::atomic<uint64_t>& beats) {
    options.beats = &beats;
    return serve(options, listens);
  });
}

}  // namespace mcast::service
