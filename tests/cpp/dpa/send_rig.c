// Addresses of the NIC begin at a fixed number, as in rig.c.
#include "send_rig.h"

#include "bytes.h"

enum { SEND_QPN = 0x4712 };
static const uint64_t kSource = UINT64_C(0x20f00000000);

void send_rig_init(struct send_rig* rig, uint32_t log, send_kernel kernel) {
  fill(rig, 0, sizeof *rig);
  rig->kernel = kernel;
  struct nic* const nic = &rig->nic;
  nic->sent = (struct nic_cq){rig->sent, &rig->sent_record, log, 0};
  nic_clear(&nic->sent);
  nic->sends = rig->entries;
  nic->send_record = &rig->records[DPA_SEND_RECORD];
  nic->send_doorbell = &rig->doorbell;
  nic->send_mask = (1u << log) - 1;
  nic->send_qpn = SEND_QPN;
  rig->key = nic_add_region(nic, kSource, rig->source, sizeof rig->source);
  struct dpa_sender* const s = &rig->sender;
  s->sq.ring = rig->entries;
  s->sq.record = &rig->records[DPA_SEND_RECORD];
  s->sq.doorbell = &rig->doorbell;
  s->sq.mask = (1u << log) - 1;
  s->sent = (struct dpa_cq){rig->sent, &rig->sent_record, 0, log};
  s->stream = &rig->stream;
}

static void plan(struct send_rig* rig, union dpa_send_wqe* plan, const struct rig_stream* stream) {
  for (uint32_t i = 0; i < 16; i++) plan->word[i] = 0;
  plan->seg.control.qpn_size = be32(SEND_QPN << 8 | DPA_SEND_UNITS);
  plan->seg.control.immediate = stream->task;
  plan->seg.address.extended_qpn = be32(UINT32_C(0x80ffffff));
  plan->seg.address.lid = 0x00c0;
  plan->seg.inline_bytes = be32(DPA_INLINE | DPA_HEADER_BYTES);
  rig_header(plan->seg.header, stream, UINT32_MAX - 1);
  plan->seg.data = (struct dpa_data){be32(stream->chunk_bytes), be32(rig->key), 0};
}

void send_rig_open(struct send_rig* rig, const struct rig_stream* stream) {
  struct dpa_stream* const s = &rig->stream;
  plan(rig, &s->plan, stream);
  s->source = kSource;
  s->stride = stream->chunk_bytes;
  s->count = stream->chunks;
  s->tail = be32(stream->tail_bytes) | (uint64_t)be32(rig->key) << 32;
  s->limit = 0;
  for (uint64_t i = 0; i < sizeof rig->source; i++) {
    rig->source[i] = (uint8_t)(i / stream->chunk_bytes * 7 + i % stream->chunk_bytes);
  }
  rig->nic.regions[rig->key & 0xff].revoked = 0;
  rig->nic.regions[rig->key & 0xff].bytes =
      (uint64_t)(stream->chunks - 1) * stream->chunk_bytes + stream->tail_bytes;
  __atomic_store_n(&s->wanted, (s->retired + 1) << 1 | 1, __ATOMIC_RELEASE);
}

void send_rig_close(struct send_rig* rig) {
  __atomic_store_n(&rig->stream.wanted, rig->stream.wanted & ~1u, __ATOMIC_RELEASE);
}

int send_rig_retired(struct send_rig* rig) {
  const struct dpa_stream* const s = &rig->stream;
  const uint32_t retired = __atomic_load_n(&s->retired, __ATOMIC_ACQUIRE);
  if ((s->wanted & 1) != 0 || retired != s->wanted >> 1) return 0;
  rig->nic.regions[rig->key & 0xff].revoked = 1;
  return 1;
}
