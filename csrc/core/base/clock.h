// The clock of the engine; layers below take time as an argument.
#pragma once

#include <ctime>

#include "base/test_clock.h"
#include "base/types.h"

namespace mcast {

// CLOCK_MONOTONIC in nanoseconds, plus the offset that a test has set.
inline Nanos monotonic_now() noexcept {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Nanos>(ts.tv_sec) * kSecond + ts.tv_nsec + test_clock::offset();
}

}  // namespace mcast
