// A worker with its queues, its NIC, and a minimal control plane: the start of tests and of the
// counting of instructions. All memory is in one struct. Freestanding.
#pragma once

#include <stdint.h>

#include "dpa.h"
#include "nic_model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum rig_flavour { RIG_HEADER, RIG_IMMEDIATE, RIG_PLACED };

enum {
  RIG_SLOTS = 256,  // maximum; the loopback queue has twice that
  RIG_CHUNK = 256,  // maximum bytes of a chunk
  RIG_STRIDE = DPA_PAYLOAD_AT + RIG_CHUNK,
  RIG_SLICES = 8,
  RIG_BYTES = 1 << 15,  // of a destination
  RIG_GUARD = 64,       // bytes before and after it
  RIG_WORDS = 64,       // of a bitmap
  RIG_REST = 32,        // entries of the engine's ring
};

// A stream, and the part of it that a slice covers.
struct rig_stream {
  uint64_t tag;
  uint32_t sequence, descriptor;
  uint16_t member;
  uint8_t lane, task;
  uint32_t chunks, chunk_bytes, tail_bytes;
  uint32_t first, count;
};

typedef int (*rig_kernel)(struct dpa_worker*);

struct rig {
  struct dpa_worker worker;
  struct dpa_slice slices[RIG_SLICES];
  struct nic nic;
  enum rig_flavour flavour;
  rig_kernel kernel;
  uint64_t doorbell;
  uint32_t rq_records[2], sq_records[2], received_record, written_record;
  uint32_t keys[RIG_SLICES];
  __attribute__((aligned(64))) struct dpa_cqe received[RIG_SLOTS];
  struct dpa_cqe written[RIG_SLOTS];
  struct dpa_data receives[RIG_SLOTS];
  __attribute__((aligned(1024))) union dpa_write_wqe writes[2 * RIG_SLOTS];
  __attribute__((aligned(64))) uint8_t staging[RIG_SLOTS * RIG_STRIDE];
  uint8_t destinations[RIG_SLICES][RIG_GUARD + RIG_BYTES + RIG_GUARD];
  uint64_t bitmaps[RIG_SLICES][RIG_WORDS];
  uint8_t rest[RIG_REST * RIG_STRIDE];
  uint32_t rest_bytes[RIG_REST];
};

// 2^log slots, all posted; no slice is open. Every byte is the same whatever was there before.
void rig_init(struct rig* rig, enum rig_flavour flavour, uint32_t log, rig_kernel kernel);

// From now on, datagrams that belong to no slice are passed on (dpa_receive_for_engine).
void rig_hand_on(struct rig* rig);

// The index of the stream's slice in the table.
uint32_t rig_slot(const struct rig* rig, const struct rig_stream* stream);
// Opens the retired slice `slot` for the stream: clears its bitmap and its destination.
void rig_open(struct rig* rig, uint32_t slot, const struct rig_stream* stream);
void rig_close(struct rig* rig, uint32_t slot);
// Returns whether the slice has retired. Its destination is then given back: a write to it breaks a
// rule.
int rig_retired(struct rig* rig, uint32_t slot);

uint8_t* rig_destination(struct rig* rig, uint32_t slot);

// Writes the 32 bytes of a header as in wire/datagram.h, with checksum 0.
void rig_header(uint8_t* out, const struct rig_stream* stream, uint32_t chunk);
// Bytes of a chunk.
uint32_t rig_bytes(const struct rig_stream* stream, uint32_t chunk);
// The datagram of a chunk arrives, in the form of the flavour.
int rig_arrive(struct rig* rig, const struct rig_stream* stream, uint32_t chunk,
               const uint8_t* payload);

#ifdef __cplusplus
}
#endif
