// Traffic of others: streams from random hosts to random others, which begin at random times
// (Poisson) and take a share of the hosts' links on average. Only draws what comes next; who runs a
// network sends it. Threads: one.
#pragma once

#include "base/rng.h"
#include "base/types.h"
#include "transport/sim/train.h"

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
  // After so long as many streams end as begin, about.
  Nanos settled() const;

 private:
  double between_, duration_;  // ns: from one stream to the next, and of one alone on its links
  uint32_t hosts_;
  double at_ = 0;
  Rng rng_;
};

}  // namespace mcast::sim
