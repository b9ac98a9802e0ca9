// Sixteen datagrams arrive, the kernel is called, and all its writes are carried out, so each call
// has a full batch and the completion of the one before. The first call, which opens the slice, is
// not counted, nor are those at the end, in which the last writes land.
#include "scenario.h"

enum kind { STEADY, DUPLICATES, FOREIGN, HANDED_ON, EMPTY };

struct plan {
  const char* name;
  enum rig_flavour flavour;
  rig_kernel kernel;
  enum kind kind;
};

static const struct plan kReceive[] = {
    {"header", RIG_HEADER, dpa_receive_header, STEADY},
    {"immediate", RIG_IMMEDIATE, dpa_receive_immediate, STEADY},
    {"placed", RIG_PLACED, dpa_receive_placed, STEADY},
    {"header_duplicate", RIG_HEADER, dpa_receive_header, DUPLICATES},
    {"header_foreign", RIG_HEADER, dpa_receive_header, FOREIGN},
    {"header_empty", RIG_HEADER, dpa_receive_header, EMPTY},
    {"placed_empty", RIG_PLACED, dpa_receive_placed, EMPTY},
    {"engine", RIG_HEADER, dpa_receive_for_engine, STEADY},
    {"engine_handed_on", RIG_HEADER, dpa_receive_for_engine, HANDED_ON},
};
enum { RECEIVES = sizeof kReceive / sizeof kReceive[0] };
_Static_assert(SCENARIOS == RECEIVES + 2, "those above, and two that send");

static const struct rig_stream kStream = {UINT64_C(0x0123456789abcdef),
                                          41,
                                          0xdeadbeef,
                                          5,
                                          0,
                                          9,
                                          SCENARIO_CHUNKS,
                                          16,
                                          16,
                                          0,
                                          SCENARIO_CHUNKS};

static uint64_t hash(uint64_t h, const void* from, uint64_t bytes) {
  const uint8_t* const p = from;
  for (uint64_t i = 0; i < bytes; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
  return h;
}

static uint64_t hash_rig(const struct rig* rig, uint32_t slot) {
  uint64_t h = UINT64_C(0xcbf29ce484222325);
  h = hash(h, rig->destinations[slot], sizeof rig->destinations[slot]);
  h = hash(h, rig->bitmaps[slot], sizeof rig->bitmaps[slot]);
  h = hash(h, &rig->slices[slot].counts, sizeof rig->slices[slot].counts);
  h = hash(h, &rig->worker.progress, sizeof rig->worker.progress);
  h = hash(h, rig->writes, sizeof rig->writes);
  h = hash(h, rig->staging, sizeof rig->staging);
  h = hash(h, rig->received, sizeof rig->received);
  h = hash(h, rig->written, sizeof rig->written);
  h = hash(h, &rig->doorbell, sizeof rig->doorbell);
  h = hash(h, rig->rq_records, sizeof rig->rq_records);
  if (rig->worker.rest.stride != 0) {
    h = hash(h, rig->rest, sizeof rig->rest);
    h = hash(h, rig->rest_bytes, sizeof rig->rest_bytes);
  }
  return hash(h, rig->sq_records, sizeof rig->sq_records);
}

static void arrive(struct rig* rig, const struct plan* plan, uint32_t chunk) {
  struct rig_stream stream = kStream;
  uint8_t payload[16];
  for (uint32_t i = 0; i < sizeof payload; i++) payload[i] = (uint8_t)(chunk * 31 + i);
  if (plan->kind == FOREIGN || plan->kind == HANDED_ON) stream.tag++;
  if (plan->kind == EMPTY) return;
  rig_arrive(rig, &stream, chunk, payload);
}

static struct scenario_result receive(const struct plan* plan, struct rig* rig,
                                      const struct scenario_call* call) {
  struct scenario_result r = {plan->name, 0, 0, 0, 0, 0};
  rig_init(rig, plan->flavour, 8, plan->kernel);
  const uint32_t slot = rig_slot(rig, &kStream);
  rig_open(rig, slot, &kStream);
  if (plan->kernel == dpa_receive_for_engine) rig_hand_on(rig);
  int taken = plan->kernel(&rig->worker);
  // Duplicates: everything has arrived before.
  for (uint32_t turn = plan->kind == DUPLICATES ? 0 : 1; turn < 2; turn++) {
    for (uint32_t chunk = 0; chunk < SCENARIO_CHUNKS; chunk += DPA_BATCH) {
      for (uint32_t i = 0; i < DPA_BATCH; i++) arrive(rig, plan, chunk + i);
      if (turn == 0) {
        plan->kernel(&rig->worker);
      } else {
        r.cost += call->receive(plan->kernel, &rig->worker, &taken);
        r.calls++;
        r.completions += (uint32_t)taken;
      }
      nic_observe(&rig->nic, 0);
      nic_write(&rig->nic, 1000);
      rig->worker.rest.taken = rig->worker.rest.written;  // the engine has read them
    }
  }
  for (uint32_t i = 0; i < 3; i++) {
    plan->kernel(&rig->worker);
    nic_observe(&rig->nic, 0);
    nic_write(&rig->nic, 1000);
  }
  const uint32_t present = rig->slices[slot].counts.present;
  const uint32_t placed = plan->kind == STEADY || plan->kind == DUPLICATES ? SCENARIO_CHUNKS : 0;
  const uint32_t handed_on = plan->kind == HANDED_ON ? SCENARIO_CHUNKS : 0;
  r.broken = rig->nic.broken;
  if (r.broken == 0 && present != placed) r.broken = "chunks are missing";
  if (r.broken == 0 && rig->worker.rest.written != handed_on) r.broken = "others were handed on";
  if (r.broken == 0 && rig->nic.dropped != 0) r.broken = "slots were missing";
  if (r.broken == 0 && r.completions != (plan->kind == EMPTY ? 0 : SCENARIO_CHUNKS)) {
    r.broken = "a batch was not full";
  }
  r.memory = hash_rig(rig, slot);
  return r;
}

static void on_sent(void* context, const uint8_t* header, const uint8_t* payload, uint32_t bytes,
                    uint32_t immediate) {
  uint64_t* const h = context;
  *h = hash(*h, header, DPA_HEADER_BYTES);
  *h = hash(*h, payload, bytes);
  *h = hash(*h, &immediate, sizeof immediate);
}

static struct scenario_result send(const char* name, send_kernel kernel, struct send_rig* rig,
                                   const struct scenario_call* call) {
  struct scenario_result r = {name, 0, 0, 0, 0, UINT64_C(0xcbf29ce484222325)};
  send_rig_init(rig, 6, kernel);
  rig->nic.on_sent = on_sent;
  rig->nic.context = &r.memory;
  send_rig_open(rig, &kStream);
  // Not counted: the ring is filled with the template.
  uint32_t limit = 0;
  while (limit < SCENARIO_CHUNKS) {
    limit += DPA_BATCH;
    rig->stream.limit = limit;
    if (limit <= SEND_ENTRIES) {
      kernel(&rig->sender);
    } else {
      int sent = 0;
      r.cost += call->send(kernel, &rig->sender, &sent);
      r.calls++;
      r.completions += (uint32_t)sent;
    }
    nic_observe(&rig->nic, 0);
    nic_send(&rig->nic, 1000);
  }
  r.broken = rig->nic.broken;
  if (r.broken == 0 && r.completions != SCENARIO_CHUNKS - SEND_ENTRIES)
    r.broken = "not all were sent";
  r.memory = hash(r.memory, rig->entries, sizeof rig->entries);
  r.memory = hash(r.memory, &rig->doorbell, sizeof rig->doorbell);
  return r;
}

struct scenario_result scenario_run(uint32_t number, struct scenario_memory* memory,
                                    const struct scenario_call* call) {
  if (number < RECEIVES) return receive(&kReceive[number], &memory->rig, call);
  if (number == RECEIVES) return send("send_header", dpa_send_header, &memory->send, call);
  return send("send_immediate", dpa_send_immediate, &memory->send, call);
}
