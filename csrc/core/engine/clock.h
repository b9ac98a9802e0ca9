// The clock of the engine; layers below take time as an argument.
#pragma once

#include <ctime>

#include "base/types.h"

namespace mcast {

// CLOCK_MONOTONIC, nanoseconds.
inline Nanos monotonic_now() noexcept {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Nanos>(ts.tv_sec) * kSecond + ts.tv_nsec;
}

}  // namespace mcast
