// Background traffic: streams from random hosts to random other hosts, which begin at random times
// (Poisson) and take a given share of the hosts' links on average. Only draws the streams; the
// caller sends them on its network. Threads: one.
#pragma once

#include "base/rng.h"
#include "base/types.h"
#include "sim/network/train.h"

namespace mcast::sim {

class Background {
 public:
  struct Stream {
    Nanos at = 0;
    HostId from = 0, to = 0;
  };

  // `load`: above 0, of links of `rate` bytes per second; at least two hosts.
  Background(double load, uint64_t size, double rate, uint32_t hosts, uint64_t seed);

  // The next stream; its time is not before that of the one before.
  Stream next();
  // Time after which about as many streams end as begin.
  Nanos settled() const;

 private:
  // Nanoseconds from one stream to the next, and of one stream alone on its links.
  double between_, duration_;
  uint32_t hosts_;
  double at_ = 0;
  Rng rng_;
};

}  // namespace mcast::sim
