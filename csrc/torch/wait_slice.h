// A wait() of a work sleeps in slices, so that signals are seen between them.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace mcast::pg {

// How long to sleep next: `longest`, or what is left of `timeout` since `start` (kNoTimeout or
// less: there is none). Throws DistBackendError once nothing is left; the work itself goes on.
// `context`: what is said of the work, a string or a CallName.
template <typename Context>
std::chrono::milliseconds wait_slice(std::chrono::steady_clock::time_point start,
                                     std::chrono::milliseconds timeout,
                                     std::chrono::milliseconds longest, const Context& context) {
  if (timeout <= kNoTimeout) return longest;
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  if (passed >= timeout) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(context, ": wait() gave up after its timeout of ", timeout.count(),
                             " ms; the operation goes on and can be waited for again"));
  }
  return std::min(longest, timeout - passed);
}

}  // namespace mcast::pg
