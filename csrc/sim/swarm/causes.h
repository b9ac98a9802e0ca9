// Conclusions from a plan that the laws need before they look at its run: the reasons for which
// operations may fail, the time that this may take, and the ranks to blame.
// Threads: data.
#pragma once

#include <set>

#include "sim/swarm/plan.h"

namespace mcast::sim {

struct Causes {
  double slowest = 1, fastest = 1;  // rates of clocks
  Nanos limit = 0;                  // setting liveness_limit
  Nanos patience = 0;               // limit by the fastest clock, in time of the world

  // Ranks that die, are silent for longer than patience, or lose a connection. If all of them stay
  // silent permanently, or only connections break, a blamed rank must be one of them.
  std::set<uint32_t> culprits;
  bool return_to_life = false;  // a culprit is heard again or still, and may blame others
  // The network itself may be silent for longer than patience, since streams wait for timers: any
  // rank may lose any other.
  bool vague = false;
  bool aborts = false, closes = false, timeouts = false, mismatches = false;

  // Time at which the last event of the plan begins or ends that operations may wait for.
  Nanos last = 0;
  // Time limit for operations called after that, if nothing fails: 20 times the time of their bytes
  // on the slowest link, and timers.
  Nanos work = 0;
  Nanos work_of[2] = {0, 0};  // the same for a lane, without faults of the other one

  // Returns true if no operation may fail.
  bool harmless() const {
    return culprits.empty() && !vague && !aborts && !closes && !timeouts && !mismatches;
  }
  // Operations may fail only by actions of ranks, and no rank is lost.
  bool nobody_is_lost() const { return culprits.empty() && !vague; }
  // Time in ns within which all ranks detect the lost ones: the silence limit of the slowest clock,
  // and 3 s of checks. The limit counts twice, since a rank that closed in order is waited for as
  // long again.
  double found_out() const { return static_cast<double>(2 * limit + 3 * kSecond) / slowest; }
};

Causes causes_of(const Plan& plan);

}  // namespace mcast::sim
