// Random loss of packets, drawn by the lengths of gaps between losses: the cost is per loss, not
// per packet. Runs of losses have a geometric length of mean `burst` (Gilbert), so `rate` is the
// share that is lost either way. On an idle link such a run ends by itself: a disturbance does not
// wait for the next packet, which may be sent by a stream's timer that doubles. Each source of loss
// has its own random numbers, so removing one does not change the others. Threads: one.
#pragma once

#include <cstdint>

#include "base/rng.h"
#include "base/types.h"

namespace mcast::sim {

class Loss {
 public:
  Loss() : Loss(0, 1, 0) {}
  Loss(double rate, double burst, uint64_t seed);

  // A run of losses ends if nothing has arrived for this long.
  static constexpr Nanos kIdle = 50 * kMilli;

  // Returns `mask` without the lost packets; the lowest bit goes first.
  uint64_t survivors(uint64_t mask, Nanos now = 0);

 private:
  uint64_t run_length(double probability);  // of packets until the state changes, at least 1
  void turn();

  double enter_, leave_;  // probability that a packet ends a run without loss, and with loss
  bool never_, losing_ = false, begun_ = false;  // begun_: a packet was lost in this run
  uint64_t left_ = 0;                            // packets of the present run
  Nanos last_ = 0;                               // arrival of the last packets
  Rng rng_;
};

}  // namespace mcast::sim
