// The clock of the engine; layers below take time as an argument.
#pragma once

#include <ctime>

#include "base/test_clock.h"
#include "base/types.h"

namespace mcast {

// CLOCK_MONOTONIC, nanoseconds, and what a test has added to it.
inline Nanos monotonic_now() noexcept {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Nanos>(ts.tv_sec) * kSecond + ts.tv_nsec + test_clock::offset();
}

}  // namespace mcast
