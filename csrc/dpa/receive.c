// Receiving. A call takes at most 16 completions: fewer at the end of a ring, so that within a call
// all pointers only count up and the owner bit has one value. For each it checks: the expected kind
// (one comparison covers owner, format and opcode), the slice and chunk, the length, and that the
// bit is clear. Then a write from the slot to the chunk's place is put into the loopback queue, and
// the bit is set. One doorbell and one update of each counter end the call. For an engine,
// datagrams without a slice are written in the same way, whole, to a ring that the engine reads.
//
// Slots are returned in the order of the ring. So every 16th write is signalled, and its entry
// stores, in the part that the NIC does not read, how far the receive queue was: when it is done,
// all earlier ones are done, and every slot up to there is free, including those without a write.
// If a call posts no write while unsignalled writes are under way, an empty entry is signalled
// instead: so the last chunks of a stream, and the slots of a flood of foreign datagrams, never
// wait for a later write that may not happen.
#include "order.h"

enum flavour { HEADER, IMMEDIATE, PLACED };

// The header of a datagram in a slot: wire/datagram.h.
struct header {
  uint32_t checksum;  // checked if verify=header: the NIC's own covers the payload
  uint32_t head;
  uint64_t tag;
  uint64_t operation;  // sequence, descriptor
  uint32_t chunk;
  uint32_t member;  // 16 bits; reserved ones
};

enum {
  HEADER_AT = DPA_PAYLOAD_AT - DPA_HEADER_BYTES,
  LAST_FLAG = 0x02000000,  // in head
  SIGNAL_BITS = (DPA_BATCH - 1) * 64,
};

// Position of a call in the loopback queue.
struct writing {
  union dpa_write_wqe* wqe;
  uint64_t index;  // << 40 | opcode << 32: its byte-reversed form is the entry's first half word
};

DPA_COLD static void attend(struct dpa_worker* w, uint32_t attention) {
  w->attended = attention;
  for (uint32_t i = 0; i <= w->slice_mask; i++) {
    struct dpa_slice* const slice = &w->slices[i];
    const uint32_t wanted = __atomic_load_n(&slice->wanted, __ATOMIC_ACQUIRE);
    if (wanted == slice->served) continue;
    const int was_closing = slice->served >> 1 != slice->retired && (slice->served & 1) == 0;
    slice->served = wanted;
    if ((wanted & 1) != 0) {
      dpa_put32(&slice->limit, slice->count);
    } else {
      dpa_put32(&slice->limit, 0);
      slice->mark = w->sq.index;
      w->closing += !was_closing;
    }
  }
}

// Retires slices whose writes are all done.
DPA_COLD static void retire(struct dpa_worker* w) {
  for (uint32_t i = 0; i <= w->slice_mask; i++) {
    struct dpa_slice* const slice = &w->slices[i];
    const uint32_t generation = slice->served >> 1;
    if ((slice->served & 1) != 0 || generation == slice->retired) continue;
    if ((int32_t)(w->progress.landed - slice->mark) < 0) continue;
    dpa_release();
    dpa_put32(&slice->retired, generation);
    w->closing--;
  }
}

DPA_COLD static void fail(struct dpa_worker* w, const struct dpa_cqe* cqe, uint32_t says) {
  dpa_release();
  dpa_put32(&w->progress.syndrome, dpa_syndrome(cqe, says));
}

// Handles a completion that this flavour does not expect. Returns true if it has been written and
// can be skipped: anyone may send another kind of datagram to a multicast address.
DPA_COLD static int strange(struct dpa_worker* w, const struct dpa_cqe* cqe, uint32_t says) {
  if (!dpa_written(says, dpa_owner(&w->received))) return 0;
  if ((says & ~1u) == DPA_CQE_SEND << 4 || (says & ~1u) == DPA_CQE_SEND_IMMEDIATE << 4) {
    w->progress.foreign++;
    return 1;
  }
  fail(w, cqe, says);
  return 0;
}

// Handles writes that are done.
DPA_INLINED void reap(struct dpa_worker* w) {
  struct dpa_cq* const cq = &w->written;
  const uint32_t before = cq->index;
  for (;;) {
    const struct dpa_cqe* const cqe = dpa_next(cq);
    const uint32_t says = dpa_says(cqe), owner = dpa_owner(cq);
    if (says != (DPA_CQE_REQUEST << 4 | owner)) {
      if (dpa_written(says, owner)) fail(w, cqe, says);
      break;
    }
    const uint32_t at = dpa_be16(cqe->wqe_counter), landed = w->progress.landed;
    w->rq.drained = (uint32_t)w->sq.ring[at & w->sq.mask].seg.note;
    dpa_release();
    dpa_put32(&w->progress.landed, landed + (uint16_t)(at + 1 - landed));
    cq->index++;
  }
  if (cq->index != before) dpa_announce(cq->record, cq->index, 0xffffff);
}

DPA_INLINED struct writing place_in(const struct dpa_write_queue* sq, uint64_t opcode) {
  return (struct writing){&sq->ring[sq->index & sq->mask],
                          (uint64_t)(sq->index & 0xffff) << 40 | opcode << 32};
}

// Posts an empty entry whose completion means that all earlier ones are done.
DPA_COLD static void flush(struct dpa_worker* w) {
  struct dpa_write_queue* const sq = &w->sq;
  const struct writing at = place_in(sq, DPA_OPCODE_NOP);
  const uint64_t units = (uint64_t)dpa_be32(DPA_NOP_UNITS) << 32;
  at.wqe->word[0] = dpa_be64(at.index) | sq->qpn | units;
  at.wqe->word[1] = (uint64_t)DPA_SIGNALLED << 24;
  at.wqe->seg.note = w->received.index;
  sq->index++;
  sq->signalled = sq->index;
  dpa_ring(sq->record, sq->doorbell, sq->index, at.wqe->word[0]);
}

// Number of completions that this call may take.
DPA_INLINED uint32_t room(const struct dpa_worker* w, enum flavour flavour) {
  const uint32_t size = 1u << w->received.log;
  uint32_t most = dpa_smaller(DPA_BATCH, size - (w->received.index & (size - 1)));
  if (flavour != PLACED) {
    const struct dpa_write_queue* const sq = &w->sq;
    most = dpa_smaller(most, sq->mask + 1 - (sq->index & sq->mask));
    // One entry is reserved for a flush, and may be in use for it.
    const uint32_t used = dpa_smaller(sq->index - w->progress.landed, sq->mask);
    most = dpa_smaller(most, sq->mask - used);
  }
  return most;
}

// Ends a call: updates counters and rings the doorbell.
DPA_INLINED void commit(struct dpa_worker* w, uint32_t taken, uint32_t drained,
                        const struct writing* at, enum flavour flavour) {
  struct dpa_cq* const cq = &w->received;
  cq->index += taken;
  if (flavour == PLACED) {
    w->rq.drained = cq->index;
  } else {
    struct dpa_write_queue* const sq = &w->sq;
    const uint32_t posted = (uint32_t)(at->wqe - &sq->ring[sq->index & sq->mask]);
    sq->index += posted;
    if (posted != 0) {
      const uint32_t signalled = sq->index & ~(uint32_t)(DPA_BATCH - 1);
      if ((int32_t)(signalled - sq->signalled) > 0) sq->signalled = signalled;
      dpa_ring(sq->record, sq->doorbell, sq->index, at->wqe[-1].word[0]);
    } else if (sq->index != sq->signalled) {
      flush(w);
    }
    // After the bits: a reader that has seen one of them finds a horizon that covers it.
    dpa_release();
    dpa_put32(&w->progress.horizon, sq->index);
    if (w->progress.landed == sq->index) w->rq.drained = cq->index;
  }
  if (taken != 0) dpa_announce(cq->record, cq->index, 0xffffff);
  if (w->rq.drained != drained) {
    dpa_announce(w->rq.record, w->rq.drained + (1u << cq->log), 0xffff);
  }
  if (w->closing != 0) retire(w);
}

DPA_INLINED int matches(const struct dpa_match* match, const struct header* h) {
  return h->tag == match->tag && h->operation == match->operation && h->member == match->member &&
         (h->head & ~(uint32_t)LAST_FLAG) == match->head;
}

// The chunk's slice and its index there; null: it has no place in an open slice.
DPA_INLINED struct dpa_slice* find(const struct dpa_worker* w, const struct dpa_cqe* cqe,
                                   const uint8_t* slot, enum flavour flavour, uint32_t* index) {
  struct dpa_slice* slice = w->slices;
  uint32_t chunk;
  if (flavour == HEADER) {
    const struct header* const h = (const struct header*)(slot + HEADER_AT);
    const uint32_t sequence = (uint32_t)h->operation, member = h->member & 0xffff;
    slice += ((sequence << w->sequence_shift) + member) & w->slice_mask;
    chunk = h->chunk;
    *index = chunk - slice->first;
    return *index < slice->limit && matches(&slice->match, h) ? slice : 0;
  }
  const uint32_t immediate = dpa_be32(cqe->immediate);
  chunk = immediate >> 8;
  *index = chunk - slice->first;
  return *index < slice->limit && (immediate & 0xff) == slice->match.member ? slice : 0;
}

// Checks length and bit. Returns true if the chunk is new.
DPA_INLINED int accept(struct dpa_slice* slice, const struct dpa_cqe* cqe, uint32_t index) {
  const uint32_t bytes = index == slice->last ? slice->tail_bytes : slice->full_bytes;
  if (cqe->byte_count != bytes) {
    slice->counts.misfits++;
    return 0;
  }
  uint64_t* const word = &slice->bitmap[index / 64];
  const uint64_t old = *word, bits = old | UINT64_C(1) << index % 64;
  if (bits == old) {
    slice->counts.duplicates++;
    return 0;
  }
  dpa_put64(word, bits);
  slice->counts.present++;
  return 1;
}

// The flags of an entry: each 16th is signalled, and stores how far the receive queue was.
DPA_INLINED uint64_t signal(union dpa_write_wqe* wqe, uint32_t taken) {
  if (((uintptr_t)wqe & SIGNAL_BITS) != SIGNAL_BITS) return 0;
  wqe->seg.note = taken;
  return (uint64_t)DPA_SIGNALLED << 24;
}

DPA_INLINED void post(struct writing* at, uint64_t qpn, const struct dpa_slice* slice,
                      uint32_t index, uint64_t from, uint32_t taken) {
  union dpa_write_wqe* const wqe = at->wqe;
  wqe->word[0] = dpa_be64(at->index) | qpn;
  wqe->word[1] = signal(wqe, taken);
  wqe->word[2] = dpa_be64(slice->destination + (uint64_t)index * slice->stride);
  wqe->word[3] = slice->key;
  wqe->word[4] = index == slice->last ? slice->tail : slice->full;
  wqe->word[5] = dpa_be64(from);
  at->wqe++;
  at->index += UINT64_C(1) << 40;
}

DPA_INLINED uint32_t opcode_of(enum flavour flavour) {
  if (flavour == HEADER) return DPA_CQE_SEND;
  return flavour == IMMEDIATE ? DPA_CQE_SEND_IMMEDIATE : DPA_CQE_WRITE_IMMEDIATE;
}

// `leaves`: ends before a datagram without a place in an open slice.
DPA_INLINED int receive(struct dpa_worker* w, enum flavour flavour, int leaves) {
  const uint32_t drained = w->rq.drained;
  if (w->progress.syndrome != 0) return DPA_FAILED;
  const uint32_t attention = __atomic_load_n(&w->attention, __ATOMIC_ACQUIRE);
  if (attention != w->attended) attend(w, attention);
  if (flavour != PLACED) {
    reap(w);
    if (w->progress.syndrome != 0) return DPA_FAILED;
  }

  const uint32_t most = room(w, flavour), begin = w->received.index, behind = begin + most;
  const uint32_t expected = opcode_of(flavour) << 4 | dpa_owner(&w->received);
  const struct dpa_cqe* cqe = dpa_next(&w->received);
  const struct dpa_cqe* const end = cqe + most;
  uintptr_t slot = 0;  // a number, since UC has no staging
  uint64_t delta = 0, qpn = 0;
  struct writing at = {0, 0};
  if (flavour != PLACED) {
    slot =
        (uintptr_t)w->rq.staging + (uint64_t)(begin & ((1u << w->received.log) - 1)) * w->rq.stride;
    delta = w->rq.delta + (flavour == HEADER ? DPA_PAYLOAD_AT : DPA_RAW_PAYLOAD_AT);
    qpn = w->sq.qpn | (uint64_t)dpa_be32(DPA_WRITE_UNITS) << 32;
    at = place_in(&w->sq, DPA_OPCODE_WRITE);
    // Before the bits that it covers.
    dpa_put32(&w->progress.horizon, w->sq.index + most);
    dpa_release();
  }

  for (; cqe != end; cqe++, slot += w->rq.stride) {
    const uint32_t says = dpa_says(cqe);
    if (says != expected) {
      if (strange(w, cqe, says)) continue;
      break;
    }
    uint32_t index;
    struct dpa_slice* const slice = find(w, cqe, (const uint8_t*)slot, flavour, &index);
    if (slice == 0) {
      if (leaves) break;
      w->progress.foreign++;
    } else if (accept(slice, cqe, index) && flavour != PLACED) {
      post(&at, qpn, slice, index, slot + delta, behind - (uint32_t)(end - cqe) + 1);
    }
  }
  const uint32_t taken = behind - (uint32_t)(end - cqe) - w->received.index;
  commit(w, taken, drained, &at, flavour);
  return w->progress.syndrome != 0 ? DPA_FAILED : (int)taken;
}

// Continues where receive() has left datagrams: hands them on whole, as far as the engine's ring
// has room. A separate function, since inline it would take registers from the code of every chunk.
DPA_COLD static int hand_on(struct dpa_worker* w, uint32_t before) {
  struct dpa_rest* const rest = &w->rest;
  const uint32_t drained = w->rq.drained, begin = w->received.index;
  const uint32_t most = dpa_smaller(room(w, HEADER), DPA_BATCH - before);
  const uint32_t free =
      rest->mask + 1 - (rest->written - __atomic_load_n(&rest->taken, __ATOMIC_ACQUIRE));
  const uint64_t qpn = w->sq.qpn | (uint64_t)dpa_be32(DPA_WRITE_UNITS) << 32;
  const struct dpa_cqe* cqe = dpa_next(&w->received);
  const uint8_t* slot =
      w->rq.staging + (uint64_t)(begin & ((1u << w->received.log) - 1)) * w->rq.stride;
  struct writing at = place_in(&w->sq, DPA_OPCODE_WRITE);
  dpa_put32(&w->progress.horizon, w->sq.index + most);
  dpa_release();
  uint32_t taken = 0, posted = 0;
  for (; taken != most; cqe++, slot += w->rq.stride) {
    uint32_t index;
    if (dpa_says(cqe) != (DPA_CQE_SEND << 4 | dpa_owner(&w->received))) break;
    if (find(w, cqe, slot, HEADER, &index) != 0) break;
    taken++;
    const uint32_t bytes = dpa_be32(cqe->byte_count) - DPA_GRH_BYTES;
    // (A write of 0 bytes would be one of 2^31.)
    if (posted == free || bytes - 1 >= rest->stride) {
      w->progress.foreign++;
      continue;
    }
    const uint32_t entry = rest->written & rest->mask;
    at.wqe->word[0] = dpa_be64(at.index) | qpn;
    at.wqe->word[1] = signal(at.wqe, begin + taken);
    at.wqe->word[2] = dpa_be64(rest->destination + (uint64_t)entry * rest->stride);
    at.wqe->word[3] = rest->key;
    at.wqe->word[4] = rest->data | dpa_be32(bytes);
    at.wqe->word[5] = dpa_be64((uintptr_t)slot + w->rq.delta + HEADER_AT);
    at.wqe++;
    at.index += UINT64_C(1) << 40;
    posted++;
    dpa_put32(&rest->bytes[entry], bytes);
    dpa_release();
    dpa_put32(&rest->written, rest->written + 1);
  }
  commit(w, taken, drained, &at, HEADER);
  return (int)(before + taken);
}

int dpa_receive_header(struct dpa_worker* worker) { return receive(worker, HEADER, 0); }

int dpa_receive_for_engine(struct dpa_worker* worker) {
  const int taken = receive(worker, HEADER, 1);
  if (taken < 0 || taken == DPA_BATCH) return taken;
  const struct dpa_cqe* const next = dpa_next(&worker->received);
  if (!dpa_written(dpa_says(next), dpa_owner(&worker->received))) return taken;
  return hand_on(worker, (uint32_t)taken);
}

int dpa_receive_immediate(struct dpa_worker* worker) { return receive(worker, IMMEDIATE, 0); }

int dpa_receive_placed(struct dpa_worker* worker) { return receive(worker, PLACED, 0); }
