// Runs every scenario on every hart and prints the cost of each call, measured by the counter of
// instructions. With several harts the counter counts those of all (it is QEMU's virtual time):
// then use the log of executed addresses instead. Hart 0 prints its own numbers, and ends the
// machine.
#include "scenario.h"

#ifndef HARTS
#define HARTS 1
#endif

uint64_t counted_receive(rig_kernel kernel, struct dpa_worker* worker, int* result);
uint64_t counted_send(send_kernel kernel, struct dpa_sender* sender, int* result);
int calibration_loop(struct dpa_worker* turns);
int calibration_empty(struct dpa_worker* nothing);
void hart_main(uint64_t hart);

static struct scenario_memory memories[HARTS];
static struct scenario_result results[HARTS][SCENARIOS];
static volatile uint32_t finished;

static void put(char c) { *(volatile uint8_t*)0x10000000 = (uint8_t)c; }

static void text(const char* s) {
  while (*s != 0) put(*s++);
}

static void number(uint64_t x) {
  char digits[20];
  uint32_t count = 0;
  do {
    digits[count++] = (char)('0' + x % 10);
    x /= 10;
  } while (x != 0);
  put(' ');
  while (count != 0) put(digits[--count]);
}

static void end(int good) { *(volatile uint32_t*)0x100000 = good ? 0x5555 : 0x13333; }

static void calibrate(void) {
  const uint64_t turns[] = {1, 100, 10000};
  int result = 0;
  text("empty");
  number(counted_receive(calibration_empty, 0, &result));
  text("\n");
  for (uint32_t i = 0; i < 3; i++) {
    text("loop");
    number(turns[i]);
    number(counted_receive(calibration_loop, (struct dpa_worker*)turns[i], &result));
    text("\n");
  }
}

// All harts must print the same numbers, or the machine ends with an error.
static int print(void) {
  int good = 1;
  for (uint32_t i = 0; i < SCENARIOS; i++) {
    const struct scenario_result* const r = &results[0][i];
    text(r->name);
    number(r->completions);
    number(r->calls);
    number(r->cost);
    number(r->memory);
    put(' ');
    text(r->broken != 0 ? r->broken : "kept");
    put('\n');
    good &= r->broken == 0;
    for (uint32_t hart = 1; hart < HARTS; hart++) good &= results[hart][i].memory == r->memory;
  }
  return good;
}

void hart_main(uint64_t hart) {
  static const struct scenario_call call = {counted_receive, counted_send};
  if (hart >= HARTS) return;
  if (hart == 0) calibrate();
  for (uint32_t i = 0; i < SCENARIOS; i++) {
    results[hart][i] = scenario_run(i, &memories[hart], &call);
  }
  __atomic_fetch_add(&finished, 1, __ATOMIC_ACQ_REL);
  if (hart != 0) return;
  while (finished != HARTS) {
  }
  end(print());
}
