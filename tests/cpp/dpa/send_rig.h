// A sender with its queue, its NIC, and one stream. All memory is in one struct. Freestanding.
#pragma once

#include "rig.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SEND_ENTRIES = 64 };

typedef int (*send_kernel)(struct dpa_sender*);

struct send_rig {
  struct dpa_sender sender;
  struct dpa_stream stream;
  struct nic nic;
  send_kernel kernel;
  uint64_t doorbell;
  uint32_t records[2], sent_record, key;
  __attribute__((aligned(64))) struct dpa_cqe sent[SEND_ENTRIES];
  union dpa_send_wqe entries[SEND_ENTRIES];
  uint8_t source[RIG_BYTES];
};

// 2^log entries; the stream is closed. `source` holds (chunk * 7 + byte) of each chunk.
void send_rig_init(struct send_rig* rig, uint32_t log, send_kernel kernel);
// Opens the retired stream, without credit.
void send_rig_open(struct send_rig* rig, const struct rig_stream* stream);
void send_rig_close(struct send_rig* rig);
int send_rig_retired(struct send_rig* rig);

#ifdef __cplusplus
}
#endif
