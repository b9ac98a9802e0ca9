// A receive kernel as the public code of the SC24 paper has it in outline, with its faults one by
// one: what the tests of csrc/dpa must not let pass.
#pragma once

#include "dpa.h"

#ifdef __cplusplus
extern "C" {
#endif

enum public_fault {
  FAULT_NONE,
  FAULT_DUPLICATE_COUNTED,  // the bit is set without a look at it, the counter moves anyway
  FAULT_SHORT_TAIL,         // the tail's length goes to the chunk that comes last, not to the last
  FAULT_ERROR_IS_SUCCESS,   // a completion's opcode is not looked at
  FAULT_EARLY_REPOST,       // a slot is posted again when its write is posted, not when it is done
  FAULT_NO_TAIL_SIGNAL,     // writes after the last signalled one are never seen to be done
};

// Which fault the next calls have.
extern enum public_fault public_fault;

// Datagrams with immediates, one slice; as dpa_receive_immediate().
int public_receive(struct dpa_worker* worker);

#ifdef __cplusplus
}
#endif
