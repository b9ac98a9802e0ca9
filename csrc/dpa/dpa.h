// The datapath of one hardware thread of a SmartNIC (a hart of a BlueField's DPA): moves chunks of
// multicast streams from a receive queue into the memory of collectives, and chunks of its own
// stream from that memory to a send queue. Freestanding C11: no library, no heap, no calls outside
// csrc/dpa. No product links it yet (docs/offload.md).
//
// A *worker* is one hart with exclusive queues: a receive queue whose slots are staging, its
// completion queue with as many entries, a loopback queue that writes from staging to the
// destination, and that queue's completion queue. A *slice* is a range of chunks of one stream. The
// control plane (engine, DPU core) prepares and opens it, and handles losses, repair, credit and
// completion.
//
// Ownership. The control plane writes fields of a slice marked "control" while the slice is
// retired, and nobody else does; the worker writes those marked "worker". `wanted` and `attention`
// are words of the control plane that the worker reads at any time; `progress`, `limit`, `retired`
// and the bitmap are words of the worker that the control plane reads at any time.
//
// A set bit means "its write is posted". The write has landed if, reading the bitmap's word first
// and then progress.horizon, landed has reached that horizon, or equals the present one.
//
// Retiring. The control plane sets `wanted` to a closed generation and raises `attention`. The
// worker posts no more writes for the slice, waits until those under way are done, and stores the
// generation in `retired`. Only then may the destination be freed. A worker that has failed retires
// no slice: destroy its queues first.
#pragma once

#include <stdint.h>

#include "mlx5_format.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DPA_BATCH = 16,           // completions in one call, and writes per signalled one
  DPA_PAYLOAD_AT = 128,     // in a slot, with our header; the receive begins at 128 - 32 - 40
  DPA_RAW_PAYLOAD_AT = 64,  // in a slot, without; the receive begins at 64 - 40
  DPA_FAILED = -1,
};

// A completion queue, 2^log entries.
struct dpa_cq {
  struct dpa_cqe* ring;
  uint32_t* record;
  uint32_t index;  // the next to be read; free-running
  uint32_t log;
};

// The loopback send queue, mask + 1 entries; its ring is aligned to 1024 bytes.
struct dpa_write_queue {
  union dpa_write_wqe* ring;
  uint32_t* record;  // DPA_SEND_RECORD
  uint64_t* doorbell;
  uint64_t qpn;        // number << 8, in big-endian, in the upper half: without the size
  uint32_t mask;       // at least 31, at most 2^15 - 1
  uint32_t index;      // the next to be posted; free-running
  uint32_t signalled;  // end of the last signalled one
};

// The receive queue: slot i of the ring is always staging + i * stride. It has as many entries as
// its completion queue, at least 32.
struct dpa_receive_queue {
  uint32_t* record;  // DPA_RECEIVE_RECORD
  uint8_t* staging;  // address in the hart's address space
  uint64_t delta;    // added to it, gives the address for the NIC
  uint32_t stride;   // bytes of a slot, a multiple of 64
  // Slots before this are free again; free-running.
  uint32_t drained;
};

// Required header fields of a slice's datagrams (wire/datagram.h).
struct dpa_match {
  uint64_t tag;
  uint64_t operation;  // sequence and descriptor
  uint32_t head;       // magic, version, type, flags; without the flag of the last chunk
  uint32_t member;     // and the reserved field; of immediates: the task, 8 bits
};

struct dpa_counts {
  uint32_t present;     // bits set
  uint32_t duplicates;  // chunks that were present already
  uint32_t misfits;     // chunks whose length does not match their place
};

// 128 bytes.
struct __attribute__((aligned(128))) dpa_slice {
  struct dpa_match match;  // control
  uint64_t destination;    // control: of its first chunk, as the loopback queue writes it
  uint64_t key;            // control: in big-endian, upper half 0
  uint64_t full;           // control: word 0 of a write's data segment: bytes and staging's key
  uint64_t tail;           // the same as `full`, for the last chunk of the stream
  uint64_t* bitmap;        // control: (count + 63) / 64 words, clear
  uint32_t full_bytes;     // control: of a completion, in big-endian: GRH, header, chunk
  uint32_t tail_bytes;
  uint32_t first;  // control: the slice has chunks [first, first + count)
  uint32_t count;
  uint32_t last;     // control: index within the slice of the stream's last chunk, else UINT32_MAX
  uint32_t stride;   // control: bytes of a full chunk
  uint32_t wanted;   // control: generation << 1 | open
  uint32_t limit;    // worker: `count` while it is served, else 0
  uint32_t served;   // worker: the last `wanted` that it has handled
  uint32_t mark;     // worker: writes before this may be its own
  uint32_t retired;  // worker: the generation that has ended
  struct dpa_counts counts;  // worker
};

// State of a worker that the control plane reads.
struct dpa_progress {
  uint32_t horizon;  // no write at or after this is posted; free-running
  uint32_t landed;   // writes before this are done
  // Reason of its failure: 0x10000, op_own << 8, syndrome of the CQE; 0: it works.
  uint32_t syndrome;
  uint32_t foreign;  // datagrams without a place in an open slice that were not handed on
};

// Ring for datagrams without a place in an open slice: in the engine's memory, one datagram per
// entry, header and payload.
struct dpa_rest {
  uint64_t destination;  // control: of entry 0, as the loopback queue writes it
  uint64_t key;          // control: as a slice's
  uint64_t data;         // control: as a slice's `full`, without the bytes
  uint32_t* bytes;       // worker: of each entry's datagram
  uint32_t mask;         // control: entries - 1
  uint32_t stride;       // control: bytes of an entry; 0: no such ring
  uint32_t taken;        // control, at any time: entries before this are free again
  uint32_t written;      // worker: entries before this are posted, and have landed when bits have
};

struct dpa_worker {
  struct dpa_cq received;
  struct dpa_cq written;
  struct dpa_receive_queue rq;
  struct dpa_write_queue sq;
  // Slices by (sequence << shift) + member, masked; with immediates there is only the first.
  struct dpa_slice* slices;
  uint32_t slice_mask;
  uint32_t sequence_shift;
  uint32_t attention;  // control: raised when some `wanted` has changed
  uint32_t attended;
  uint32_t closing;  // slices that are to retire
  struct dpa_progress progress;
  struct dpa_rest rest;
};

// Each function handles at most one batch of completions, and returns their number, or DPA_FAILED.
// They never wait.
//
// header: our datagrams; the slot contains the chunk's number and its stream.
int dpa_receive_header(struct dpa_worker* worker);
// The same; besides, hands datagrams without a place in an open slice on to the engine (dpa_rest).
int dpa_receive_for_engine(struct dpa_worker* worker);
// The paper's format: task and chunk in the immediate of a datagram.
int dpa_receive_immediate(struct dpa_worker* worker);
// The paper's proposal: writes with an immediate that have placed the data already. Without
// staging; the loopback queue is not used.
int dpa_receive_placed(struct dpa_worker* worker);

// Sending. The queue has entries of two slots: mask + 1 of these, at least 32.
struct dpa_send_queue {
  union dpa_send_wqe* ring;
  uint32_t* record;  // DPA_SEND_RECORD
  uint64_t* doorbell;
  uint32_t mask;   // at most 2^14 - 1
  uint32_t index;  // the next to be posted; free-running
  uint32_t done;   // entries before this are done
  uint32_t fresh;  // entries that do not contain the present template yet
};

// The stream that a sender sends: it may send chunks [next, limit); `limit` is the credit. It
// retires as a slice does: the source may be changed or freed once `retired` reports that.
struct dpa_stream {
  // control: an entry without index, flags, chunk and address; with immediates, control.immediate
  // contains the task (not in big-endian).
  union dpa_send_wqe plan;
  uint64_t source;   // control: of chunk 0, as the queue reads it
  uint64_t tail;     // control: word 0 of the last chunk's data segment
  uint32_t stride;   // control: bytes of a full chunk
  uint32_t count;    // control
  uint32_t limit;    // control, at any time: at most count; it only grows
  uint32_t wanted;   // control, at any time: as a slice's
  uint32_t served;   // worker
  uint32_t retired;  // worker
  uint32_t next;     // worker
};

struct dpa_sender {
  struct dpa_send_queue sq;
  struct dpa_cq sent;
  struct dpa_stream* stream;
  uint32_t syndrome;  // as in dpa_progress
};

// Posts at most one batch of chunks; returns their number, or DPA_FAILED. Never waits.
int dpa_send_header(struct dpa_sender* sender);
int dpa_send_immediate(struct dpa_sender* sender);

#ifdef __cplusplus
}
#endif
