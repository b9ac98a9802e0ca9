// Byte order and filling for the NIC model and the rigs. They are not those of csrc/dpa/order.h,
// since the model checks code that uses those.
#pragma once

#include <stdint.h>

static inline uint32_t be32(uint32_t x) {
  return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
}
static inline uint64_t be64(uint64_t x) {
  return (uint64_t)be32((uint32_t)x) << 32 | be32((uint32_t)(x >> 32));
}

// There is no library with memset on the DPA.
static inline void fill(void* to, uint8_t with, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++) ((volatile uint8_t*)to)[i] = with;
}
