// The plain system calls; not the private kind, since the sleepers are other processes.
#include "shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "base/test_clock.h"

namespace mcast {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Nanos timeout) noexcept {
  timeout = test_clock::nap(timeout);
  if (timeout <= 0) return;
  struct timespec limit {};
  limit.tv_sec = static_cast<time_t>(timeout / kSecond);
  limit.tv_nsec = static_cast<long>(timeout % kSecond);
  (void)::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected,
                  timeout == kNever ? nullptr : &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) noexcept {
  (void)::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
                  nullptr, 0);
}

}  // namespace mcast
