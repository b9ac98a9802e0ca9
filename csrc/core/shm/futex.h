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

// A bell: a count of rings. A thread that is about to sleep reads the bell, checks once more for
// work, and sleeps only while the bell has that value, so no ring is lost.
inline void ring(std::atomic<uint32_t>& bell) noexcept {
  bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(bell);
}

}  // namespace mcast
