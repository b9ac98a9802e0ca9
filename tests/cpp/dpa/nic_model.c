// Each rule is checked at the moment at which a violation would affect a NIC: entries when their
// counter is announced, slots when they are posted again, memory when a write is carried out.
#include "nic_model.h"

#include "bytes.h"

static uint16_t be16(uint16_t x) { return (uint16_t)(x << 8 | x >> 8); }

static void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++) to[i] = from[i];
}

// The compiler calls these to copy structs; there is no library for this target.
#ifdef __riscv
void* memcpy(void* to, const void* from, __SIZE_TYPE__ bytes);
void* memset(void* to, int with, __SIZE_TYPE__ bytes);
void* memcpy(void* to, const void* from, __SIZE_TYPE__ bytes) {
  for (__SIZE_TYPE__ i = 0; i < bytes; i++) ((volatile uint8_t*)to)[i] = ((const uint8_t*)from)[i];
  return to;
}
void* memset(void* to, int with, __SIZE_TYPE__ bytes) {
  for (__SIZE_TYPE__ i = 0; i < bytes; i++) ((volatile uint8_t*)to)[i] = (uint8_t)with;
  return to;
}
#endif

static void broke(struct nic* nic, const char* rule) {
  if (nic->broken == 0) nic->broken = rule;
}

static uint8_t noise(struct nic* nic) {
  nic->noise = nic->noise * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint8_t)(nic->noise >> 56);
}

static uint8_t* find(const struct nic_region* region, uint64_t address, uint64_t bytes) {
  if (address < region->address || bytes > region->bytes) return 0;
  const uint64_t at = address - region->address;
  return at > region->bytes - bytes ? 0 : region->memory + at;
}

void nic_clear(struct nic_cq* cq) {
  for (uint32_t i = 0; i < 1u << cq->log; i++) cq->ring[i].op_own = DPA_CQE_INVALID << 4;
  cq->produced = 0;
}

uint32_t nic_add_region(struct nic* nic, uint64_t address, uint8_t* memory, uint64_t bytes) {
  for (uint32_t i = 0; i < NIC_REGIONS; i++) {
    if (nic->regions[i].key != 0) continue;
    nic->regions[i] = (struct nic_region){address, memory, bytes, 0x7700 + i, 0};
    return nic->regions[i].key;
  }
  return 0;
}

static void complete(struct nic* nic, struct nic_cq* cq, uint32_t opcode, uint32_t counter,
                     uint32_t immediate, uint32_t bytes) {
  const uint32_t taken = be32(*cq->record);
  if (((cq->produced - taken) & 0xffffff) >= 1u << cq->log) {
    broke(nic, "completion queue overrun");
    return;
  }
  struct dpa_cqe cqe;
  for (uint32_t i = 0; i < sizeof cqe; i++) ((uint8_t*)&cqe)[i] = noise(nic);
  cqe.immediate = be32(immediate);
  cqe.byte_count = be32(bytes);
  cqe.wqe_counter = be16((uint16_t)counter);
  cqe.op_own =
      (uint8_t)(opcode << 4 | (noise(nic) & DPA_CQE_SOLICITED) | (cq->produced >> cq->log & 1));
  cq->ring[cq->produced++ & ((1u << cq->log) - 1)] = cqe;
}

int nic_receive(struct nic* nic, uint32_t opcode, uint32_t immediate, const uint8_t* header,
                const uint8_t* payload, uint32_t bytes) {
  if (nic->rq_consumed == nic->rq_posted) {
    nic->dropped++;
    return 0;
  }
  const uint32_t at = nic->rq_consumed++;
  if (nic->fail_receives != 0) {
    nic->fail_receives--;
    complete(nic, &nic->received, DPA_CQE_RECEIVE_ERROR, at, immediate, bytes);
    return 1;
  }
  if (opcode == DPA_CQE_WRITE_IMMEDIATE) {
    complete(nic, &nic->received, opcode, at, immediate, bytes);
    return 1;
  }
  const struct dpa_data* const slot = &nic->receives[at & ((1u << nic->received.log) - 1)];
  const uint32_t head = header != 0 ? DPA_HEADER_BYTES : 0, all = DPA_GRH_BYTES + head + bytes;
  uint8_t* to = find(&nic->staging, be64(slot->address), be32(slot->bytes));
  if (slot->key != be32(nic->staging.key) || to == 0) {
    broke(nic, "receive outside staging");
    return 0;
  }
  if (all > be32(slot->bytes)) {
    complete(nic, &nic->received, DPA_CQE_RECEIVE_ERROR, at, immediate, bytes);
    return 1;
  }
  for (uint32_t i = 0; i < DPA_GRH_BYTES; i++) *to++ = noise(nic);
  copy(to, header, head);
  copy(to + head, payload, bytes);
  complete(nic, &nic->received, opcode, at, immediate, all);
  return 1;
}

// Receives that are posted again: the data in their slots must not be needed any more.
static void observe_receives(struct nic* nic) {
  const uint32_t size = 1u << nic->received.log;
  const uint32_t more = (be32(*nic->rq_record) - nic->rq_posted) & 0xffff;
  if (more == 0) return;
  if (nic->rq_posted + more - nic->rq_consumed > size) {
    broke(nic, "more receives than slots");
    return;
  }
  const uint32_t taken = be32(*nic->received.record);
  if (((nic->rq_posted + more - taken) & 0xffffff) > size) {
    broke(nic, "receive posted before its completion is taken");
    return;
  }
  for (uint32_t i = 0; i < more && nic->receives != 0; i++) {
    const struct dpa_data* const slot = &nic->receives[(nic->rq_posted + i) & (size - 1)];
    const uint64_t from = be64(slot->address), bytes = be32(slot->bytes);
    for (uint32_t p = nic->done; p != nic->fetched; p++) {
      const union dpa_write_wqe* const wqe = &nic->pending[p % NIC_PENDING].wqe;
      if ((be32(wqe->seg.control.index_opcode) & 0xff) != DPA_OPCODE_WRITE) continue;
      const uint64_t reads = be64(wqe->seg.data.address);
      if (reads >= from && reads < from + bytes) {
        broke(nic, "slot posted again before it was written out");
        return;
      }
    }
    uint8_t* const memory = find(&nic->staging, from, bytes);
    if (memory != 0) fill(memory, 0xee, bytes);
  }
  nic->rq_posted += more;
}

static const char* check_control(const struct dpa_control* control, uint32_t index, uint32_t qpn,
                                 uint32_t units) {
  const uint32_t says = be32(control->index_opcode);
  if (says >> 24 != 0 || (says >> 8 & 0xffff) != (index & 0xffff)) return "index of an entry";
  if (be32(control->qpn_size) != (qpn << 8 | units)) return "queue pair or size of an entry";
  if ((control->flags & ~DPA_SIGNALLED) != 0 || control->signature != 0) return "flags of an entry";
  return 0;
}

static const struct nic_region* region_of(const struct nic* nic, uint32_t key) {
  for (uint32_t i = 0; i < NIC_REGIONS; i++) {
    if (key != 0 && nic->regions[i].key == key) return &nic->regions[i];
  }
  return 0;
}

static const char* check_write(const struct nic* nic, const union dpa_write_wqe* wqe,
                               uint32_t index) {
  const uint32_t opcode = be32(wqe->seg.control.index_opcode) & 0xff;
  if (opcode == DPA_OPCODE_NOP) {
    return check_control(&wqe->seg.control, index, nic->qpn, DPA_NOP_UNITS);
  }
  if (opcode != DPA_OPCODE_WRITE) return "opcode of an entry";
  const char* const wrong = check_control(&wqe->seg.control, index, nic->qpn, DPA_WRITE_UNITS);
  if (wrong != 0) return wrong;
  const struct dpa_data* const data = &wqe->seg.data;
  const uint32_t bytes = be32(data->bytes);
  if (data->key != be32(nic->staging.key) || !find(&nic->staging, be64(data->address), bytes)) {
    return "write from outside staging";
  }
  const struct nic_region* const to = region_of(nic, be32(wqe->seg.remote.key));
  if (to == 0) return "key of a write";
  if (find(to, be64(wqe->seg.remote.address), bytes) == 0) return "write beyond its destination";
  return 0;
}

static void observe_writes(struct nic* nic) {
  const uint32_t more = (be32(*nic->sq_record) - nic->fetched) & 0xffff;
  if (nic->fetched + more - nic->done > nic->sq_mask + 1 || more > NIC_PENDING) {
    broke(nic, "send queue overrun");
    return;
  }
  for (uint32_t i = 0; i < more; i++) {
    struct nic_pending* const pending = &nic->pending[nic->fetched % NIC_PENDING];
    pending->index = nic->fetched;
    pending->wqe = nic->writes[nic->fetched & nic->sq_mask];
    const char* const wrong = check_write(nic, &pending->wqe, nic->fetched);
    if (wrong != 0) {
      broke(nic, wrong);
      return;
    }
    nic->fetched++;
  }
}

static void observe_sends(struct nic* nic) {
  const uint32_t slots = (be32(*nic->send_record) - nic->send_fetched * 2) & 0xffff;
  if (slots % 2 != 0 || nic->send_fetched + slots / 2 - nic->send_done > nic->send_mask + 1) {
    broke(nic, "send queue overrun");
    return;
  }
  for (uint32_t i = 0; i < slots / 2; i++, nic->send_fetched++) {
    const union dpa_send_wqe* const wqe = &nic->sends[nic->send_fetched & nic->send_mask];
    const uint32_t opcode = be32(wqe->seg.control.index_opcode) & 0xff;
    const char* wrong =
        check_control(&wqe->seg.control, nic->send_fetched * 2, nic->send_qpn, DPA_SEND_UNITS);
    if (opcode != DPA_OPCODE_SEND && opcode != DPA_OPCODE_SEND_IMMEDIATE) wrong = "opcode";
    if (wqe->seg.inline_bytes != be32(DPA_INLINE | DPA_HEADER_BYTES)) wrong = "inline segment";
    const struct nic_region* const from = region_of(nic, be32(wqe->seg.data.key));
    if (from == 0 || find(from, be64(wqe->seg.data.address), be32(wqe->seg.data.bytes)) == 0) {
      wrong = "send from outside its source";
    }
    if (wrong != 0) {
      broke(nic, wrong);
      return;
    }
  }
}

void nic_observe(struct nic* nic, const void* place) {
  if (nic->broken != 0) return;
  if (nic->sq_record != 0 && (place == nic->sq_record || place == 0)) observe_writes(nic);
  if (nic->send_record != 0 && (place == nic->send_record || place == 0)) observe_sends(nic);
  if (nic->rq_record != 0 && (place == nic->rq_record || place == 0)) observe_receives(nic);
  if (place != 0 && place == nic->doorbell) {
    const uint32_t last = nic->fetched - 1;
    if (*nic->doorbell != nic->writes[last & nic->sq_mask].word[0] ||
        (be32((uint32_t)*nic->doorbell) >> 8 & 0xffff) != (last & 0xffff)) {
      broke(nic, "doorbell ahead of the counter");
    }
  }
  if (place != 0 && place == nic->send_doorbell) {
    const uint32_t last = nic->send_fetched - 1;
    if (*nic->send_doorbell != nic->sends[last & nic->send_mask].word[0] ||
        (be32((uint32_t)*nic->send_doorbell) >> 8 & 0xffff) != (last * 2 & 0xffff)) {
      broke(nic, "doorbell ahead of the counter");
    }
  }
}

static int carry_out(struct nic* nic, const union dpa_write_wqe* wqe) {
  const uint32_t bytes = be32(wqe->seg.data.bytes);
  const struct nic_region* const to = region_of(nic, be32(wqe->seg.remote.key));
  if (to == 0 || to->revoked) {
    broke(nic, "write after its slice was retired");
    return 0;
  }
  copy(find(to, be64(wqe->seg.remote.address), bytes),
       find(&nic->staging, be64(wqe->seg.data.address), bytes), bytes);
  return 1;
}

uint32_t nic_write(struct nic* nic, uint32_t most) {
  uint32_t count = 0;
  for (; count < most && nic->done != nic->fetched && nic->broken == 0; count++) {
    const struct nic_pending* const pending = &nic->pending[nic->done % NIC_PENDING];
    const uint32_t opcode = be32(pending->wqe.seg.control.index_opcode) & 0xff;
    if (nic->failed) {
      // Flushed. A queue pair reports each one; a single report is enough for the kernel.
    } else if (nic->fail_write == pending->index + 1) {
      nic->failed = 1;
      complete(nic, &nic->written, DPA_CQE_REQUEST_ERROR, pending->index, 0, 0);
    } else {
      if (opcode == DPA_OPCODE_WRITE && !carry_out(nic, &pending->wqe)) return count;
      if ((pending->wqe.seg.control.flags & DPA_SIGNALLED) != 0) {
        complete(nic, &nic->written, DPA_CQE_REQUEST, pending->index, 0, 0);
      }
    }
    nic->done++;
  }
  return count;
}

uint32_t nic_send(struct nic* nic, uint32_t most) {
  uint32_t count = 0;
  for (; count < most && nic->send_done != nic->send_fetched && nic->broken == 0; count++) {
    // Read when it is sent: an entry must not change until it is done.
    const union dpa_send_wqe* const wqe = &nic->sends[nic->send_done & nic->send_mask];
    const uint32_t opcode = be32(wqe->seg.control.index_opcode) & 0xff;
    const struct nic_region* const from = region_of(nic, be32(wqe->seg.data.key));
    const uint32_t bytes = be32(wqe->seg.data.bytes), index = nic->send_done++;
    if (nic->send_fail == index + 1) {
      complete(nic, &nic->sent, DPA_CQE_REQUEST_ERROR, index * 2, 0, 0);
      continue;
    }
    if (from == 0 || from->revoked) {
      broke(nic, "send after its stream was retired");
      return count;
    }
    if (check_control(&wqe->seg.control, index * 2, nic->send_qpn, DPA_SEND_UNITS) != 0) {
      broke(nic, "entry changed on its way");
      return count;
    }
    nic->on_sent(nic->context, wqe->seg.header, find(from, be64(wqe->seg.data.address), bytes),
                 bytes, opcode == DPA_OPCODE_SEND_IMMEDIATE ? be32(wqe->seg.control.immediate) : 0);
    if ((wqe->seg.control.flags & DPA_SIGNALLED) != 0) {
      complete(nic, &nic->sent, DPA_CQE_REQUEST, index * 2, 0, 0);
    }
  }
  return count;
}
