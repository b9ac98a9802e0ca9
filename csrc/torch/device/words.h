// Words of pinned memory that the host and a device share. Host side: the device sees a store after
// everything before it.
#pragma once

#include <atomic>
#include <cstdint>

namespace mcast::pg {

// Larger than every awaited value, with room to count on.
inline constexpr uint32_t kOpen = 0x40000000;

inline uint32_t load(uint32_t* word) {
  return std::atomic_ref<uint32_t>(*word).load(std::memory_order_acquire);
}
inline void store(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
}
inline void add_one(uint32_t* word) {
  std::atomic_ref<uint32_t>(*word).fetch_add(1, std::memory_order_release);
}
// A word never decreases: the end of an operation may already have opened the gate.
inline void raise(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t> shared(*word);
  uint32_t before = shared.load(std::memory_order_relaxed);
  while (before < value &&
         !shared.compare_exchange_weak(before, value, std::memory_order_release)) {
  }
}

}  // namespace mcast::pg
