// The NIC's addresses begin at fixed numbers, so that rings hold the same bytes on every machine.
#include "rig.h"

#include "bytes.h"

enum { QPN = 0x4711, STAGING_KEY = 0x5500 };
static const uint64_t kStaging = UINT64_C(0x7f5500000000),
                      kDestination = UINT64_C(0x10123400000000), kRest = UINT64_C(0x20000000000000);

static void init_nic(struct rig* rig, uint32_t log) {
  struct nic* const nic = &rig->nic;
  nic->received = (struct nic_cq){rig->received, &rig->received_record, log, 0};
  nic->written = (struct nic_cq){rig->written, &rig->written_record, log, 0};
  nic_clear(&nic->received);
  nic_clear(&nic->written);
  nic->rq_record = &rig->rq_records[DPA_RECEIVE_RECORD];
  if (rig->flavour != RIG_PLACED) {
    nic->receives = rig->receives;
    nic->writes = rig->writes;
    nic->sq_record = &rig->sq_records[DPA_SEND_RECORD];
    nic->doorbell = &rig->doorbell;
    nic->sq_mask = (2u << log) - 1;
    nic->qpn = QPN;
    nic->staging = (struct nic_region){kStaging, rig->staging, sizeof rig->staging, STAGING_KEY, 0};
  }
}

void rig_init(struct rig* rig, enum rig_flavour flavour, uint32_t log, rig_kernel kernel) {
  fill(rig, 0, sizeof *rig);
  rig->flavour = flavour;
  rig->kernel = kernel;
  init_nic(rig, log);
  struct dpa_worker* const w = &rig->worker;
  w->received = (struct dpa_cq){rig->received, &rig->received_record, 0, log};
  w->written = (struct dpa_cq){rig->written, &rig->written_record, 0, log};
  w->rq.record = rig->rq_records;
  w->rq.staging = rig->staging;
  w->rq.delta = kStaging - (uintptr_t)rig->staging;
  w->rq.stride = RIG_STRIDE;
  w->sq.ring = rig->writes;
  w->sq.record = &rig->sq_records[DPA_SEND_RECORD];
  w->sq.doorbell = &rig->doorbell;
  w->sq.qpn = (uint64_t)be32(QPN << 8) << 32;
  w->sq.mask = (2u << log) - 1;
  w->slices = rig->slices;
  w->slice_mask = flavour == RIG_HEADER ? RIG_SLICES - 1 : 0;
  w->sequence_shift = 2;
  const uint32_t before = DPA_GRH_BYTES + (flavour == RIG_HEADER ? (uint32_t)DPA_HEADER_BYTES : 0u);
  const uint32_t payload = flavour == RIG_HEADER ? DPA_PAYLOAD_AT : DPA_RAW_PAYLOAD_AT;
  for (uint32_t i = 0; i < 1u << log; i++) {
    const uint64_t at = kStaging + (uint64_t)i * RIG_STRIDE + payload - before;
    rig->receives[i] = (struct dpa_data){be32(before + RIG_CHUNK), be32(STAGING_KEY), be64(at)};
  }
  rig->rq_records[DPA_RECEIVE_RECORD] = be32(1u << log);
  nic_observe(&rig->nic, 0);
}

void rig_hand_on(struct rig* rig) {
  const uint32_t key = nic_add_region(&rig->nic, kRest, rig->rest, sizeof rig->rest);
  const uint64_t data = (uint64_t)be32(STAGING_KEY) << 32;
  rig->worker.rest =
      (struct dpa_rest){kRest, be32(key), data, rig->rest_bytes, RIG_REST - 1, RIG_STRIDE, 0, 0};
}

uint32_t rig_slot(const struct rig* rig, const struct rig_stream* stream) {
  if (rig->flavour != RIG_HEADER) return 0;
  return ((stream->sequence << rig->worker.sequence_shift) + stream->member) &
         rig->worker.slice_mask;
}

uint8_t* rig_destination(struct rig* rig, uint32_t slot) {
  return rig->destinations[slot] + RIG_GUARD;
}

void rig_header(uint8_t* out, const struct rig_stream* stream, uint32_t chunk) {
  const uint32_t last = chunk + 1 == stream->chunks ? 2 : 0;
  const uint32_t head = 0x4d43 | 0x11u << 16 | (stream->lane | last) << 24;
  for (uint32_t i = 0; i < 4; i++) {
    out[i] = 0;
    out[4 + i] = (uint8_t)(head >> 8 * i);
    out[16 + i] = (uint8_t)(stream->sequence >> 8 * i);
    out[20 + i] = (uint8_t)(stream->descriptor >> 8 * i);
    out[24 + i] = (uint8_t)(chunk >> 8 * i);
    out[28 + i] = (uint8_t)((uint32_t)stream->member >> 8 * i);
  }
  for (uint32_t i = 0; i < 8; i++) out[8 + i] = (uint8_t)(stream->tag >> 8 * i);
}

uint32_t rig_bytes(const struct rig_stream* stream, uint32_t chunk) {
  return chunk + 1 == stream->chunks ? stream->tail_bytes : stream->chunk_bytes;
}

static void match(const struct rig* rig, struct dpa_match* out, const struct rig_stream* stream) {
  *out = (struct dpa_match){stream->tag, stream->sequence | (uint64_t)stream->descriptor << 32,
                            0x4d43 | 0x11u << 16 | (uint32_t)stream->lane << 24, stream->member};
  if (rig->flavour != RIG_HEADER) out->member = stream->task;
}

void rig_open(struct rig* rig, uint32_t slot, const struct rig_stream* stream) {
  struct dpa_slice* const slice = &rig->slices[slot];
  fill(rig->destinations[slot], 0xdd, sizeof rig->destinations[slot]);
  fill(rig->bitmaps[slot], 0, sizeof rig->bitmaps[slot]);
  const uint64_t address = kDestination + (uint64_t)slot * (RIG_BYTES + 4096);
  if (rig->keys[slot] == 0) {
    rig->keys[slot] = nic_add_region(&rig->nic, address, rig_destination(rig, slot), RIG_BYTES);
  }
  struct nic_region* const region = &rig->nic.regions[rig->keys[slot] & 0xff];
  region->revoked = 0;
  // Exactly the slice's bytes: a write beyond the slice is beyond its destination.
  const uint32_t end = stream->first + stream->count - 1;
  region->bytes = (uint64_t)(stream->count - 1) * stream->chunk_bytes + rig_bytes(stream, end);

  const uint32_t before = rig->flavour == RIG_HEADER      ? DPA_GRH_BYTES + DPA_HEADER_BYTES
                          : rig->flavour == RIG_IMMEDIATE ? DPA_GRH_BYTES
                                                          : 0;
  const uint64_t key = (uint64_t)be32(STAGING_KEY) << 32;
  match(rig, &slice->match, stream);
  slice->destination = address;
  slice->key = be32(rig->keys[slot]);
  slice->full = be32(stream->chunk_bytes) | key;
  slice->tail = be32(stream->tail_bytes) | key;
  slice->bitmap = rig->bitmaps[slot];
  slice->full_bytes = be32(before + stream->chunk_bytes);
  slice->tail_bytes = be32(before + stream->tail_bytes);
  slice->first = stream->first;
  slice->count = stream->count;
  slice->last = end + 1 == stream->chunks ? stream->count - 1 : UINT32_MAX;
  slice->stride = stream->chunk_bytes;
  slice->counts = (struct dpa_counts){0, 0, 0};
  __atomic_store_n(&slice->wanted, (slice->retired + 1) << 1 | 1, __ATOMIC_RELEASE);
  __atomic_store_n(&rig->worker.attention, rig->worker.attention + 1, __ATOMIC_RELEASE);
}

void rig_close(struct rig* rig, uint32_t slot) {
  struct dpa_slice* const slice = &rig->slices[slot];
  __atomic_store_n(&slice->wanted, slice->wanted & ~1u, __ATOMIC_RELEASE);
  __atomic_store_n(&rig->worker.attention, rig->worker.attention + 1, __ATOMIC_RELEASE);
}

int rig_retired(struct rig* rig, uint32_t slot) {
  const struct dpa_slice* const slice = &rig->slices[slot];
  const uint32_t retired = __atomic_load_n(&slice->retired, __ATOMIC_ACQUIRE);
  if ((slice->wanted & 1) != 0 || retired != slice->wanted >> 1) return 0;
  if (rig->keys[slot] != 0) rig->nic.regions[rig->keys[slot] & 0xff].revoked = 1;
  return 1;
}

int rig_arrive(struct rig* rig, const struct rig_stream* stream, uint32_t chunk,
               const uint8_t* payload) {
  const uint32_t immediate = chunk << 8 | stream->task, bytes = rig_bytes(stream, chunk);
  if (rig->flavour == RIG_HEADER) {
    uint8_t header[DPA_HEADER_BYTES];
    rig_header(header, stream, chunk);
    return nic_receive(&rig->nic, DPA_CQE_SEND, 0, header, payload, bytes);
  }
  const uint32_t opcode =
      rig->flavour == RIG_IMMEDIATE ? DPA_CQE_SEND_IMMEDIATE : DPA_CQE_WRITE_IMMEDIATE;
  return nic_receive(&rig->nic, opcode, immediate, 0, payload, bytes);
}
