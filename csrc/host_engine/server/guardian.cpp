// The guardian is the parent process: it reports the exit status, and sees the child's end without
// a race. It shares one page with the child, sleeps in sigtimedwait(), and checks the beats eight
// times per limit. It holds no memory of clients and communicates with no process, so there is
// little on which it could hang.
#include "host_engine/server/guardian.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "crypto/secret.h"

namespace mcast::service {
namespace {

constexpr Nanos kLeastLimit = 500 * kMilli;
constexpr int kLooks = 8;  // checks per limit

// 'T': stopped, 'D': in the kernel, 'R', 'S': normal.
char state_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const size_t name = text.rfind(") ");
  return name == std::string::npos ? '?' : text[name + 2];
}

int cannot(const char* what) {
  log(LogLevel::kError, "the engine cannot be watched (--guardian): %s: %s", what,
      std::strerror(errno));
  return 1;
}

int told(pid_t child, int status, bool killed) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  if (killed) return kStoodStill;
  log(LogLevel::kError, "engine (process %d) was ended by signal %d (%s)", static_cast<int>(child),
      WTERMSIG(status), strsignal(WTERMSIG(status)));
  return 128 + WTERMSIG(status);
}

int watch(pid_t child, const std::atomic<uint64_t>& beats, Nanos limit, const sigset_t& signals) {
  const Nanos step = limit / kLooks;
  StillWatch still(step);
  for (bool killed = false;;) {
    const timespec pause{step / kSecond, step % kSecond};
    const int number = sigtimedwait(&signals, nullptr, &pause);
    if (number == SIGTERM || number == SIGINT) (void)::kill(child, number);
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return told(child, status, killed);
    const Nanos since = still.look(beats.load(std::memory_order_relaxed), monotonic_now());
    if (since < limit || killed) continue;
    log(LogLevel::kError, "engine (process %d) has not run for %s (state %c): it is killed",
        static_cast<int>(child), seconds_text(since).c_str(), state_of(child));
    (void)::kill(child, SIGKILL);
    killed = true;
  }
}

}  // namespace

Nanos StillWatch::look(uint64_t beats, Nanos now) {
  if (beats != last_ || beats == 0) {
    still_ = 0;
  } else {
    still_ += std::min(now - looked_, step_);
  }
  last_ = beats;
  looked_ = now;
  return still_;
}

Nanos guardian_limit(Nanos silence) { return std::max(silence / 4, kLeastLimit); }

int guarded(Nanos limit, const std::function<int(std::atomic<uint64_t>& beats)>& engine) {
  void* const page = ::mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return cannot("mmap");
  auto& beats = *new (page) std::atomic<uint64_t>(0);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  (void)::signal(SIGCHLD, SIG_DFL);  // the parent may have left it ignored
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return cannot("fork");
  if (child > 0) {
    (void)crypto::drop_secret_of_environment();  // the child has it; the guardian needs none
    return watch(child, beats, limit, signals);
  }
  // If the guardian is killed, the child must not run unsupervised.
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ::getppid() == self ? engine(beats) : 1;
}

}  // namespace mcast::service
