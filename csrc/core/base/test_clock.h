// Lets a test move the clock of this process: nanoseconds in a mapped file are added to
// CLOCK_MONOTONIC (base/clock.h). No setting enables this: a rank's test calls use(), and the
// programs of the engine and the aggregator read MCAST_TEST_CLOCK when they start. A process
// without such a clock pays one load and one branch per reading.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>

#include "base/status.h"
#include "base/types.h"

namespace mcast::test_clock {

// Null unless use() has been called.
extern std::atomic<const std::atomic<int64_t>*> page;

// Maps the first 8 bytes of a file, for the life of the process. Call it before the first group is
// made: the code does not support time that jumps back.
Status use(const std::string& path);

// For a program that no test can call: use() of the file that MCAST_TEST_CLOCK names, if it is set.
Status use_environment();

inline Nanos offset() noexcept {
  const auto* const at = page.load(std::memory_order_relaxed);
  return at == nullptr ? 0 : at->load(std::memory_order_relaxed);
}

// Time that a thread may sleep that wants to sleep for `pause`: it must wake up to notice that a
// test has moved the clock.
inline Nanos nap(Nanos pause) noexcept {
  return page.load(std::memory_order_relaxed) == nullptr ? pause : std::min(pause, 5 * kMilli);
}

}  // namespace mcast::test_clock
