// What of a plan may make operations fail, how long that may take, and who is to blame: what laws
// need to know of a plan before they look at its run.
// Threads: data.
#pragma once

#include <set>

#include "simulation/swarm/plan.h"

namespace mcast::sim {

struct Causes {
  double slowest = 1, fastest = 1;  // rates of clocks
  Nanos limit = 0;                  // setting liveness_limit
  Nanos patience = 0;               // the same by the fastest clock, in time of the world

  // Ranks that die, fall silent for longer than patience, or lose a connection. If all of them stay
  // silent for good, or only connections break, who is blamed for it is one of them.
  std::set<uint32_t> culprits;
  bool return_to_life = false;  // one of them speaks again or still, and may blame others
  // The network may be silent for longer than patience by itself, since streams wait for timers:
  // anybody may be lost to anybody.
  bool vague = false;
  bool aborts = false, closes = false, timeouts = false, mismatches = false;

  // When the last thing of the plan is done or undone that operations have to wait for.
  Nanos last = 0;
  // How long what is called then may take, if nothing fails: 20 times what its bytes take on the
  // slowest link, and timers.
  Nanos work = 0;
  Nanos work_of[2] = {0, 0};  // the same for a lane, without faults of the other one

  // Nothing may fail.
  bool harmless() const {
    return culprits.empty() && !vague && !aborts && !closes && !timeouts && !mismatches;
  }
  // Only what ranks did may fail operations, and nobody is lost.
  bool nobody_is_lost() const { return culprits.empty() && !vague; }
  // Within how many ns everybody knows who is lost: when they have been silent for the limit of the
  // slowest clock, and have been asked after for 3 s more. Twice the limit: one who closed in order
  // is waited for as long again.
  double found_out() const { return static_cast<double>(2 * limit + 3 * kSecond) / slowest; }
};

Causes causes_of(const Plan& plan);

}  // namespace mcast::sim
