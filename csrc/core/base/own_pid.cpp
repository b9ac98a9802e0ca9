// Known from the first call on; fork() sets it anew in the child, before anything else of ours runs
// there. (Who clones a process past the C library has no handlers run, but no locks of it either.)
#include "base/own_pid.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace mcast {
namespace {

std::atomic<pid_t> g_pid{0};

}  // namespace

pid_t own_pid() {
  const pid_t known = g_pid.load(std::memory_order_relaxed);
  if (known != 0) return known;
  static const bool follows =
      pthread_atfork(nullptr, nullptr, [] { g_pid.store(::getpid()); }) == 0;
  const pid_t pid = ::getpid();
  if (follows) g_pid.store(pid, std::memory_order_relaxed);
  return pid;
}

}  // namespace mcast
