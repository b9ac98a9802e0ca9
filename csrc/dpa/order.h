// Big-endian numbers, and the order in which the NIC and the control plane see a hart's stores:
// data is in memory before the counter or doorbell that announces it. Included only by the kernel,
// and by tests/cpp/dpa/public_faults.c, which is a kernel too.
#pragma once

#include <stdint.h>

#include "dpa.h"

#ifdef DPA_OBSERVED
// Tests compile the kernel a second time and check each announcement as it is made: a model that
// runs between calls would see all stores of a call at once.
void dpa_observe(const void* announced);
#define DPA_ANNOUNCED(place) dpa_observe(place)
#else
#define DPA_ANNOUNCED(place) ((void)0)
#endif

#define DPA_COLD __attribute__((noinline, cold))
#define DPA_INLINED static inline __attribute__((always_inline))

// Shifts, if there is no instruction for it: the compiler would call its library.
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

// Stores that others may read at any time, in one piece. (GCC 12 compiles an atomic store on RISC-V
// to an exchange, which costs a hart a round trip to memory.)
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

// Orders earlier reads and stores before later stores.
DPA_INLINED void dpa_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

// A doorbell is a device register on a hart, for which a fence between stores to memory is not
// sufficient.
DPA_INLINED void dpa_order(void) {
#ifdef __riscv
  __asm__ volatile("fence rw, ow" ::: "memory");
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// Writes the low 16 or 24 bits of a queue's counter, which the NIC reads.
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

// The status word of a completion, read before the rest of it and before the data that it
// completes.
DPA_INLINED uint32_t dpa_says(const struct dpa_cqe* cqe) {
  return __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE) & ~(uint32_t)DPA_CQE_SOLICITED;
}

// Returns true if the NIC has written the completion in this round of the ring.
DPA_INLINED int dpa_written(uint32_t says, uint32_t owner) {
  return (says & 1) == owner && says >> 4 != DPA_CQE_INVALID;
}

// The reason why a completion ends the work of a hart. Correctly configured queues have no
// compressed completions and none with inline data.
DPA_INLINED uint32_t dpa_syndrome(const struct dpa_cqe* cqe, uint32_t says) {
  return 0x10000 | says << 8 | cqe->syndrome;
}
