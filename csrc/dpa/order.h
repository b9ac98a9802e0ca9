// Big-endian numbers, and the order in which the NIC and the control plane see what a hart stores:
// what a counter or a doorbell announces is in memory before it. Only the kernel includes this, and
// tests/cpp/dpa/public_faults.c, which is a kernel too.
#pragma once

#include <stdint.h>

#include "dpa.h"

#ifdef DPA_OBSERVED
// Tests compile the kernel a second time and look at each announcement as it is made: a model that
// runs between calls would see all stores of a call at once.
void dpa_observe(const void* announced);
#define DPA_ANNOUNCED(place) dpa_observe(place)
#else
#define DPA_ANNOUNCED(place) ((void)0)
#endif

#define DPA_COLD __attribute__((noinline, cold))
#define DPA_INLINED static inline __attribute__((always_inline))

// Shifts where there is no instruction for it: the compiler would call its library.
#if defined(__riscv) && !defined(__riscv_zbb)
DPA_INLINED uint64_t dpa_be64(uint64_t x) {
  const uint64_t bytes = UINT64_C(0x00ff00ff00ff00ff), pairs = UINT64_C(0x0000ffff0000ffff);
  x = (x & bytes) << 8 | (x >> 8 & bytes);
  x = (x & pairs) << 16 | (x >> 16 & pairs);
  return x << 32 | x >> 32;
}
DPA_INLINED uint32_t dpa_be32(uint32_t x) {
  const uint32_t bytes = 0x00ff00ff;
  x = (x & bytes) << 8 | (x >> 8 & bytes);
  return x << 16 | x >> 16;
}
#else
DPA_INLINED uint64_t dpa_be64(uint64_t x) { return __builtin_bswap64(x); }
DPA_INLINED uint32_t dpa_be32(uint32_t x) { return __builtin_bswap32(x); }
#endif
DPA_INLINED uint16_t dpa_be16(uint16_t x) { return (uint16_t)(x << 8 | x >> 8); }

DPA_INLINED uint32_t dpa_smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Stores that others may see at any time, in one piece. (GCC 12 makes an exchange of an atomic
// store on RISC-V, which costs a hart a way to memory and back.)
#ifdef __riscv
DPA_INLINED void dpa_put32(uint32_t* place, uint32_t x) { *(volatile uint32_t*)place = x; }
DPA_INLINED void dpa_put64(uint64_t* place, uint64_t x) { *(volatile uint64_t*)place = x; }
#else
DPA_INLINED void dpa_put32(uint32_t* place, uint32_t x) {
  __atomic_store_n(place, x, __ATOMIC_RELAXED);
}
DPA_INLINED void dpa_put64(uint64_t* place, uint64_t x) {
  __atomic_store_n(place, x, __ATOMIC_RELAXED);
}
#endif

// What was read and stored before comes before what is stored from here on.
DPA_INLINED void dpa_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

// A doorbell is a device's register on a hart, where a fence between stores to memory is not
// enough.
DPA_INLINED void dpa_order(void) {
#ifdef __riscv
  __asm__ volatile("fence rw, ow" ::: "memory");
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// Tells the NIC the 16 or 24 bits of a queue's counter that it looks at.
DPA_INLINED void dpa_announce(uint32_t* record, uint32_t index, uint32_t mask) {
  dpa_release();
  dpa_put32(record, dpa_be32(index & mask));
  DPA_ANNOUNCED(record);
}

// Counter and doorbell of a send queue; `first`: the first word of the last entry.
DPA_INLINED void dpa_ring(uint32_t* record, uint64_t* doorbell, uint32_t index, uint64_t first) {
  dpa_announce(record, index, 0xffff);
  dpa_order();
  dpa_put64(doorbell, first);
  DPA_ANNOUNCED(doorbell);
}

DPA_INLINED uint32_t dpa_owner(const struct dpa_cq* cq) { return cq->index >> cq->log & 1; }

DPA_INLINED struct dpa_cqe* dpa_next(const struct dpa_cq* cq) {
  return &cq->ring[cq->index & ((1u << cq->log) - 1)];
}

// What a completion says of itself, read before the rest of it and before what it is about.
DPA_INLINED uint32_t dpa_says(const struct dpa_cqe* cqe) {
  return __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE) & ~(uint32_t)DPA_CQE_SOLICITED;
}

// Whether the NIC has written it since the ring was last here.
DPA_INLINED int dpa_written(uint32_t says, uint32_t owner) {
  return (says & 1) == owner && says >> 4 != DPA_CQE_INVALID;
}

// Why a completion ends the work of a hart. A queue that is set up for them has no compressed
// completions and none with data in them.
DPA_INLINED uint32_t dpa_syndrome(const struct dpa_cqe* cqe, uint32_t says) {
  return 0x10000 | says << 8 | cqe->syndrome;
}
