// Random schedules. A seed determines a cluster, its faults, the operations of its groups and the
// times at which every rank posts them. Running a schedule checks everything that must hold at the
// end.
#pragma once

#include <string>
#include <vector>

#include "support/cluster.h"

namespace mcast::test {

struct OpSpec {
  wire::Kind kind = wire::Kind::kBarrier;
  Member root = 0;
  size_t bytes = 0;
  Element element = Element::kFloat32;  // for reductions
  Reduction reduction = Reduction::kSum;

  wire::Descriptor descriptor() const;
};

struct Pause {
  Member rank = 0;
  Nanos from = 0, length = 0;
};

struct Schedule {
  uint64_t seed = 0;
  uint32_t ranks = 2;
  SimOptions net;  // faults are enabled after creation
  std::vector<GroupParams> groups;
  std::vector<std::vector<OpSpec>> ops;                // [group]
  std::vector<std::vector<std::vector<Nanos>>> posts;  // [group][rank][op], after creation
  bool from_callbacks = false;  // op k+1 is posted inside the completion of op k
  bool replay = false;          // repeats old packets, also under another tag
  std::string refuse;           // when the medium refuses datagrams (transport/fault_spec.h)
  std::vector<Pause> pauses;
  std::vector<Nanos> clocks;  // how far each rank's clock is ahead

  bool faultless() const;
  std::string describe() const;
};

// The kinds of schedules that a seed may make.
struct Flavour {
  bool ring = false;          // groups use the unicast ring
  bool reduce = false;        // reductions among the operations
  bool exchange = false;      // exchanges among the operations
  bool duplicates = false;    // a switch that repeats every datagram, also much later
  bool refusals = false;      // a kernel that refuses a datagram now and then
  bool near_the_end = false;  // operations have the last possible numbers
  bool source_auth = false;   // guarded groups whose roots send digests
  bool faultless = false;     // clean network, ample memory: counters must be exact
};
Schedule make_schedule(uint64_t seed, const Flavour& flavour);

struct Outcome {
  std::string error;  // "" if everything held
  uint64_t gaps = 0, repairs = 0, remulticast = 0, timeouts = 0, chunks = 0, gathered = 0,
           duplicates = 0, refused = 0;
};
Outcome run_schedule(const Schedule& schedule);

}  // namespace mcast::test
