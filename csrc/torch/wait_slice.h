// A wait() of a work sleeps in slices, so that signals are seen between them.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/clock.h"

namespace mcast::pg {

// Returns how long to sleep next: `longest`, or the rest of `timeout` since `start` (kNoTimeout or
// less: no limit). Throws DistBackendError once no time is left; the work itself continues.
// `start`: of monotonic_now(). `context`: description of the work, a string or a CallName.
template <typename Context>
std::chrono::milliseconds wait_slice(Nanos start, std::chrono::milliseconds timeout,
                                     std::chrono::milliseconds longest, const Context& context) {
  if (timeout <= kNoTimeout) return longest;
  const std::chrono::milliseconds passed((monotonic_now() - start) / kMilli);
  if (passed >= timeout) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(context, ": wait() gave up after its timeout of ", timeout.count(),
                             " ms; the operation goes on and can be waited for again"));
  }
  return std::min(longest, timeout - passed);
}

}  // namespace mcast::pg
