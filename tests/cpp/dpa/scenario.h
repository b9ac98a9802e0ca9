// Scenarios for counting instructions: a worker that is always busy, and its edge cases. The counts
// and the memory that they leave are the same on every machine. Freestanding.
#pragma once

#include <stdint.h>

#include "rig.h"
#include "send_rig.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SCENARIOS = 11, SCENARIO_CHUNKS = 512 };

struct scenario_memory {
  struct rig rig;
  struct send_rig send;
};

// Calls the kernel once and returns the cost of the call.
struct scenario_call {
  uint64_t (*receive)(rig_kernel kernel, struct dpa_worker* worker, int* result);
  uint64_t (*send)(send_kernel kernel, struct dpa_sender* sender, int* result);
};

struct scenario_result {
  const char* name;
  const char* broken;  // a broken rule or a wrong result; null: none
  uint32_t completions, calls;
  uint64_t cost;    // of all calls
  uint64_t memory;  // hash of the memory at the end
};

struct scenario_result scenario_run(uint32_t number, struct scenario_memory* memory,
                                    const struct scenario_call* call);

#ifdef __cplusplus
}
#endif
