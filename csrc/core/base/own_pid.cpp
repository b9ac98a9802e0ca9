// Read at the first call; fork() updates it in the child, before any other code of this library
// runs there. (A process that is cloned without the C library runs no fork handlers, but the child
// has none of the C library's locks either.)
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
