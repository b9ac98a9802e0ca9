// Sleeping on a word of shared memory until another process rings.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/types.h"

namespace mcast {

// Sleeps while *word == expected, at most `timeout`; may return early for no reason. Any thread.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Nanos timeout) noexcept;
// Wakes everybody who sleeps on the word, in any process. Async-signal-safe.
void futex_wake(std::atomic<uint32_t>& word) noexcept;

}  // namespace mcast
