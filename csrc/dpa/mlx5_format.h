// Formats that an mlx5 NIC reads and writes, as far as the kernel uses them: completions, send
// queue entries, the data segment of a receive, and the counters of queues. Numbers in them are
// big-endian. The layout is that of infiniband/mlx5dv.h, which is not a freestanding header;
// tests/cpp/dpa/formats_test.cpp compares the two by static assertions. 64-bit little-endian
// machines only.
#pragma once

#include <stdint.h>

// A completion, 64 bytes. The NIC writes the last byte last.
struct dpa_cqe {
  uint8_t unused0[36];
  uint32_t immediate;
  uint8_t unused40[4];
  uint32_t byte_count;  // received, including the GRH if there is one
  uint8_t unused48[7];
  uint8_t syndrome;  // of an error
  uint32_t opcode_qpn;
  uint16_t wqe_counter;  // index of the queue entry that it completes
  uint8_t signature;
  uint8_t op_own;  // opcode << 4 | format << 2 | solicited << 1 | owner
};

enum {
  DPA_CQE_REQUEST = 0,          // a send has completed
  DPA_CQE_WRITE_IMMEDIATE = 1,  // received: a write with an immediate
  DPA_CQE_SEND = 2,             // received: a datagram
  DPA_CQE_SEND_IMMEDIATE = 3,   // received: a datagram with an immediate
  DPA_CQE_REQUEST_ERROR = 13,
  DPA_CQE_RECEIVE_ERROR = 14,
  DPA_CQE_INVALID = 15,  // nothing yet

  DPA_CQE_SOLICITED = 2,     // in op_own
  DPA_CQE_FORMAT_SHIFT = 2,  // 0: 64 bytes without data; 3: compressed
};

// Segments of send queue entries.
struct dpa_control {
  uint32_t index_opcode;  // index << 8 | opcode
  uint32_t qpn_size;      // queue pair number << 8 | size of the entry in units of 16 bytes
  uint8_t signature;
  uint8_t unused[2];
  uint8_t flags;
  uint32_t immediate;
};

struct dpa_remote {
  uint64_t address;
  uint32_t key;
  uint32_t unused;
};

struct dpa_data {
  uint32_t bytes;
  uint32_t key;
  uint64_t address;
};

// Destination of a datagram.
struct dpa_address_vector {
  uint32_t qkey;
  uint32_t unused4;
  uint32_t extended_qpn;
  uint8_t rate_level;
  uint8_t path_bits;
  uint16_t lid;
  uint8_t unused16[4];
  uint8_t mac[6];
  uint8_t traffic_class;
  uint8_t hop_limit;
  uint32_t grh_flow;
  uint8_t gid[16];
};

// RDMA_WRITE: 3 units of 16 bytes. The NIC does not read the last unit of the slot: the kernel
// stores a note there. The kernel writes whole words: half as many stores.
union dpa_write_wqe {
  struct {
    struct dpa_control control;
    struct dpa_remote remote;
    struct dpa_data data;
    uint64_t note;
    uint64_t unused;
  } seg;
  uint64_t word[8];
};

enum { DPA_HEADER_BYTES = 32, DPA_GRH_BYTES = 40 };

// A datagram whose first 32 bytes are in the entry itself: 8 units, two slots of 64 bytes.
union dpa_send_wqe {
  struct {
    struct dpa_control control;
    struct dpa_address_vector address;
    uint32_t inline_bytes;  // DPA_INLINE | number of bytes
    uint8_t header[DPA_HEADER_BYTES];
    uint8_t unused[12];
    struct dpa_data data;
  } seg;
  uint64_t word[16];
  uint32_t half[32];
};

enum {
  DPA_OPCODE_NOP = 0x00,
  DPA_OPCODE_WRITE = 0x08,
  DPA_OPCODE_SEND = 0x0a,
  DPA_OPCODE_SEND_IMMEDIATE = 0x0b,

  DPA_SIGNALLED = 0x08,  // in control.flags: requests a completion

  DPA_NOP_UNITS = 1,
  DPA_WRITE_UNITS = 3,
  DPA_SEND_UNITS = 8,

  // Words of a queue pair's record of counters.
  DPA_RECEIVE_RECORD = 0,
  DPA_SEND_RECORD = 1,
};

#define DPA_INLINE UINT32_C(0x80000000)
