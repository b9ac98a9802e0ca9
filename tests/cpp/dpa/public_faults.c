// Handles one completion after the other in the simplest way. The faults are where the public code
// has them.
#include "public_faults.h"

#define DPA_OBSERVED
#include "order.h"

enum public_fault public_fault = FAULT_NONE;

static void reap(struct dpa_worker* w) {
  for (;;) {
    const struct dpa_cqe* const cqe = dpa_next(&w->written);
    const uint32_t says = dpa_says(cqe);
    if (!dpa_written(says, dpa_owner(&w->written))) return;
    if (says >> 4 != DPA_CQE_REQUEST && public_fault != FAULT_ERROR_IS_SUCCESS) {
      w->progress.syndrome = dpa_syndrome(cqe, says);
      return;
    }
    const uint32_t at = dpa_be16(cqe->wqe_counter);
    w->progress.landed += (uint16_t)(at + 1 - w->progress.landed);
    w->rq.drained = (uint32_t)w->sq.ring[at & w->sq.mask].seg.note;
    w->written.index++;
    dpa_announce(w->written.record, w->written.index, 0xffffff);
  }
}

static void post(struct dpa_worker* w, const struct dpa_slice* slice, uint32_t chunk, int tail) {
  struct dpa_write_queue* const sq = &w->sq;
  const uint32_t slots = 1u << w->received.log;
  const uint64_t slot = (uint64_t)(w->received.index & (slots - 1)) * w->rq.stride;
  union dpa_write_wqe* const wqe = &sq->ring[sq->index & sq->mask];
  const int signalled = public_fault != FAULT_NO_TAIL_SIGNAL || sq->index % DPA_BATCH == 15;
  const uint32_t units = dpa_be32(DPA_WRITE_UNITS);
  wqe->word[0] = dpa_be32((sq->index & 0xffff) << 8 | DPA_OPCODE_WRITE) | (uint64_t)units << 32;
  wqe->word[0] |= sq->qpn;
  wqe->word[1] = signalled ? (uint64_t)DPA_SIGNALLED << 24 : 0;
  wqe->word[2] = dpa_be64(slice->destination + (uint64_t)chunk * slice->stride);
  wqe->word[3] = slice->key;
  wqe->word[4] = tail ? slice->tail : slice->full;
  wqe->word[5] = dpa_be64((uintptr_t)w->rq.staging + slot + w->rq.delta + DPA_RAW_PAYLOAD_AT);
  wqe->seg.note = w->received.index + 1;
  sq->index++;
  w->progress.horizon = sq->index;
  dpa_ring(sq->record, sq->doorbell, sq->index, wqe->word[0]);
}

static void handle(struct dpa_worker* w, const struct dpa_cqe* cqe) {
  struct dpa_slice* const slice = &w->slices[0];
  const uint32_t immediate = dpa_be32(cqe->immediate), chunk = (immediate >> 8) - slice->first;
  if (chunk >= slice->limit || (immediate & 0xff) != slice->match.member) return;
  const uint32_t fits = chunk == slice->last ? slice->tail_bytes : slice->full_bytes;
  if (cqe->byte_count != fits && public_fault != FAULT_ERROR_IS_SUCCESS) return;
  uint64_t* const word = &slice->bitmap[chunk / 64];
  const uint64_t bit = UINT64_C(1) << chunk % 64;
  if ((*word & bit) != 0 && public_fault != FAULT_DUPLICATE_COUNTED) return;
  *word |= bit;
  slice->counts.present++;
  int tail = chunk == slice->last;
  if (public_fault == FAULT_SHORT_TAIL) {
    tail = slice->last != UINT32_MAX && slice->counts.present == slice->count;
  }
  post(w, slice, chunk, tail);
}

int public_receive(struct dpa_worker* w) {
  struct dpa_slice* const slice = &w->slices[0];
  int taken = 0;
  slice->served = slice->wanted;
  slice->limit = (slice->wanted & 1) != 0 ? slice->count : 0;
  reap(w);
  for (; taken < DPA_BATCH && w->progress.syndrome == 0; taken++) {
    const struct dpa_cqe* const cqe = dpa_next(&w->received);
    const uint32_t says = dpa_says(cqe);
    if (!dpa_written(says, dpa_owner(&w->received))) break;
    if (says >> 4 == DPA_CQE_SEND_IMMEDIATE || public_fault == FAULT_ERROR_IS_SUCCESS) {
      handle(w, cqe);
    } else if (says >> 4 != DPA_CQE_SEND) {
      w->progress.syndrome = dpa_syndrome(cqe, says);
      break;
    }
    w->received.index++;
    dpa_announce(w->received.record, w->received.index, 0xffffff);
  }
  const int idle = w->progress.landed == w->sq.index;
  if (idle || public_fault == FAULT_EARLY_REPOST) w->rq.drained = w->received.index;
  dpa_announce(w->rq.record, w->rq.drained + (1u << w->received.log), 0xffff);
  if (idle && (slice->served & 1) == 0) slice->retired = slice->served >> 1;
  return w->progress.syndrome != 0 ? DPA_FAILED : taken;
}
