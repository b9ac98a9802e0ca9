// Sending. A call posts at most 16 chunks: as many as the credit, the queue and its end allow. An
// entry that already contains the stream's template is patched in four places: index and opcode,
// flags and immediate, the header's chunk, the payload's address. In the first round of the ring
// the template is copied. The last entry of a call is signalled, so the completion of every posted
// chunk is always detected, and one doorbell ends the call.
#include "order.h"

enum {
  CHUNK_AT = (68 + 24) / 4,  // the header begins behind 68 bytes: wire/datagram.h
  FLAGS_AT = 7,              // in the header
  LAST_FLAG = 2,
  SLOTS = 2,  // of an entry
};

// Handles datagrams that have been sent.
DPA_INLINED void reap(struct dpa_sender* s) {
  struct dpa_cq* const cq = &s->sent;
  const uint32_t before = cq->index;
  for (;;) {
    const struct dpa_cqe* const cqe = dpa_next(cq);
    const uint32_t says = dpa_says(cqe), owner = dpa_owner(cq);
    if (says != (DPA_CQE_REQUEST << 4 | owner)) {
      if (dpa_written(says, owner)) s->syndrome = dpa_syndrome(cqe, says);
      break;
    }
    const uint16_t slots = (uint16_t)(dpa_be16(cqe->wqe_counter) + SLOTS - s->sq.done * SLOTS);
    s->sq.done += slots / SLOTS;
    cq->index++;
  }
  if (cq->index != before) dpa_announce(cq->record, cq->index, 0xffffff);
}

// Opens or retires the stream. Returns true if it may send.
DPA_COLD static int attend(struct dpa_sender* s, uint32_t wanted) {
  struct dpa_stream* const stream = s->stream;
  if (wanted != stream->served) {
    stream->served = wanted;
    if ((wanted & 1) != 0) {
      stream->next = 0;
      s->sq.fresh = s->sq.mask + 1;
    }
  }
  if ((wanted & 1) != 0) return 1;
  if (s->sq.done == s->sq.index) {
    dpa_release();
    dpa_put32(&stream->retired, wanted >> 1);
  }
  return 0;
}

DPA_COLD static void copy_plan(struct dpa_send_queue* sq, union dpa_send_wqe* wqe,
                               const union dpa_send_wqe* plan) {
  sq->fresh--;
  for (uint32_t i = 0; i < sizeof plan->word / sizeof plan->word[0]; i++) {
    wqe->word[i] = plan->word[i];
  }
}

DPA_INLINED int send(struct dpa_sender* s, uint64_t opcode) {
  struct dpa_send_queue* const sq = &s->sq;
  struct dpa_stream* const stream = s->stream;
  if (s->syndrome != 0) return DPA_FAILED;
  reap(s);
  if (s->syndrome != 0) return DPA_FAILED;
  const uint32_t wanted = __atomic_load_n(&stream->wanted, __ATOMIC_ACQUIRE);
  if ((wanted != stream->served || (wanted & 1) == 0) && !attend(s, wanted)) return 0;

  const uint32_t at = sq->index & sq->mask, next = stream->next;
  const uint32_t credit = __atomic_load_n(&stream->limit, __ATOMIC_ACQUIRE) - next;
  uint32_t count = dpa_smaller(dpa_smaller(DPA_BATCH, credit), sq->mask + 1 - at);
  count = dpa_smaller(count, sq->mask + 1 - (sq->index - sq->done));
  if (count == 0) return 0;

  union dpa_send_wqe* wqe = &sq->ring[at];
  const uint64_t control = stream->plan.word[0] & ~UINT64_C(0xffffffff);
  const uint64_t task = stream->plan.seg.control.immediate;
  uint64_t index = (uint64_t)(sq->index * SLOTS & 0xffff) << 40 | opcode << 32;
  uint64_t address = stream->source + (uint64_t)next * stream->stride;
  for (uint32_t chunk = next; chunk != next + count; chunk++, wqe++) {
    if (sq->fresh != 0) copy_plan(sq, wqe, &stream->plan);
    wqe->word[0] = dpa_be64(index) | control;
    uint64_t immediate = 0;
    if (opcode == DPA_OPCODE_SEND_IMMEDIATE) {
      immediate = (uint64_t)dpa_be32((uint32_t)(chunk << 8 | task)) << 32;
    }
    wqe->word[1] = immediate;
    wqe->half[CHUNK_AT] = chunk;
    wqe->seg.data.address = dpa_be64(address);
    address += stream->stride;
    index += (uint64_t)SLOTS << 40;
  }
  wqe--;
  wqe->seg.control.flags = DPA_SIGNALLED;
  stream->next = next + count;
  if (stream->next == stream->count) {
    wqe->seg.header[FLAGS_AT] |= LAST_FLAG;
    wqe->word[14] = stream->tail;
  }
  sq->index += count;
  dpa_ring(sq->record, sq->doorbell, sq->index * SLOTS, wqe->word[0]);
  return (int)count;
}

int dpa_send_header(struct dpa_sender* sender) { return send(sender, DPA_OPCODE_SEND); }

int dpa_send_immediate(struct dpa_sender* sender) {
  return send(sender, DPA_OPCODE_SEND_IMMEDIATE);
}
