// An mlx5 NIC as far as csrc/dpa can observe it: rings in memory, scatter with a GRH, owner bits,
// writes that are carried out later. It models rules, not times. A violation by the kernel stops
// the model, and `broken` names the rule. Freestanding, so that it also runs where the kernel's
// instructions are counted. One thread.
//
// nic_observe() notifies the model of each announcement, as it is made (the kernel compiled with
// DPA_OBSERVED) or after a call.
#pragma once

#include <stdint.h>

#include "dpa.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NIC_PENDING = 2048, NIC_REGIONS = 16 };

// Memory that the NIC may read or write. Its addresses are unrelated to those of the hart.
struct nic_region {
  uint64_t address;
  uint8_t* memory;
  uint64_t bytes;
  uint32_t key;
  int revoked;  // given back to its owner
};

struct nic_cq {
  struct dpa_cqe* ring;
  const uint32_t* record;
  uint32_t log;
  uint32_t produced;  // not reduced modulo the ring
};

struct nic_pending {
  uint32_t index;
  union dpa_write_wqe wqe;
};

// Called for everything that leaves the send queue.
typedef void (*nic_sent)(void* context, const uint8_t* header, const uint8_t* payload,
                         uint32_t bytes, uint32_t immediate);

struct nic {
  const char* broken;  // the first broken rule; null: none

  // Receiving.
  struct nic_cq received;
  const struct dpa_data* receives;  // one entry per slot
  const uint32_t* rq_record;
  uint32_t rq_posted, rq_consumed;  // not reduced modulo the ring
  uint32_t dropped;                 // datagrams for which no receive was posted
  uint32_t fail_receives;           // how many of the next ones end with an error

  // The loopback queue.
  struct nic_cq written;
  const union dpa_write_wqe* writes;
  const uint32_t* sq_record;
  const uint64_t* doorbell;
  uint32_t sq_mask, qpn;
  uint32_t fetched, done;  // not reduced modulo the ring
  uint32_t fail_write;     // 1 + index of a write that fails; 0: none
  int failed;              // the queue pair is in the error state
  struct nic_pending pending[NIC_PENDING];

  // Sending.
  struct nic_cq sent;
  const union dpa_send_wqe* sends;
  const uint32_t* send_record;
  const uint64_t* send_doorbell;
  uint32_t send_mask, send_qpn;
  uint32_t send_fetched, send_done;
  uint32_t send_fail;  // 1 + the entry that ends with an error
  nic_sent on_sent;
  void* context;

  struct nic_region staging;
  struct nic_region regions[NIC_REGIONS];  // by key; key 0: none
  uint64_t noise;                          // state of the random fill of unused fields
};

// Makes an empty completion queue.
void nic_clear(struct nic_cq* cq);

// A datagram, or a write, with this immediate arrives: header (may be null) and payload. `opcode`
// is that of its completion. Returns whether a receive was posted for it.
int nic_receive(struct nic* nic, uint32_t opcode, uint32_t immediate, const uint8_t* header,
                const uint8_t* payload, uint32_t bytes);

// `place` was written: a counter or a doorbell. Null: check all of them.
void nic_observe(struct nic* nic, const void* place);

// Carries out at most `most` of the pending writes and returns their number.
uint32_t nic_write(struct nic* nic, uint32_t most);
// Completes at most `most` entries of the send queue.
uint32_t nic_send(struct nic* nic, uint32_t most);

// Adds a region and returns its key, or 0 if there is no room.
uint32_t nic_add_region(struct nic* nic, uint64_t address, uint8_t* memory, uint64_t bytes);

#ifdef __cplusplus
}
#endif
