// A receive kernel that follows the outline of the SC24 paper's public code, with its faults one by
// one. The tests of csrc/dpa must detect each of them.
#pragma once

#include "dpa.h"

#ifdef __cplusplus
extern "C" {
#endif

enum public_fault {
  FAULT_NONE,
  FAULT_DUPLICATE_COUNTED,  // sets the bit without checking it, counts anyway
  FAULT_SHORT_TAIL,         // uses the tail's length for the last arrival
  FAULT_ERROR_IS_SUCCESS,   // ignores a completion's opcode
  FAULT_EARLY_REPOST,       // posts a slot again before its write is done
  FAULT_NO_TAIL_SIGNAL,     // misses the end of writes after the last signal
};

// The fault of the next calls.
extern enum public_fault public_fault;

// Datagrams with immediates, one slice; like dpa_receive_immediate().
int public_receive(struct dpa_worker* worker);

#ifdef __cplusplus
}
#endif
