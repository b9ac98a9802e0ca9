// Random schedules: one seed makes a cluster, its faults, the operations of its groups and the
// times at which every rank posts them; running it checks everything that must hold at the end.
#pragma once

#include <string>
#include <vector>

#include "support/cluster.h"

namespace mcast::test {

struct OpSpec {
  wire::Kind kind = wire::Kind::kBarrier;
  Member root = 0;
  size_t bytes = 0;
  Element element = Element::kFloat32;  // reductions
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
  SimOptions net;  // faults come into force after creation
  std::vector<GroupParams> groups;
  std::vector<std::vector<OpSpec>> ops;                // [group]
  std::vector<std::vector<std::vector<Nanos>>> posts;  // [group][rank][op], after creation
  bool from_callbacks = false;  // op k+1 is posted inside the completion of op k
  bool replay = false;          // old packets come again, also under another tag
  std::string refuse;  // when the medium takes no datagram: a rule of transport/fault_spec.h
  std::vector<Pause> pauses;
  std::vector<Nanos> clocks;  // how far each rank's is ahead

  bool faultless() const;
  std::string describe() const;
};

// What kinds of schedules a seed may make.
struct Flavour {
  bool ring = false;          // groups use the unicast ring
  bool reduce = false;        // reductions among the operations
  bool exchange = false;      // exchanges among the operations
  bool duplicates = false;    // a switch that delivers every datagram again, also much later
  bool refusals = false;      // a kernel that takes no datagram now and then
  bool near_the_end = false;  // of the numbers that operations can have
  bool source_auth = false;   // guarded groups whose roots send digests
  bool faultless = false;     // a clean network, all memory ample: the counters must be exact
};
Schedule make_schedule(uint64_t seed, const Flavour& flavour);

struct Outcome {
  std::string error;  // "" if all held
  uint64_t gaps = 0, repairs = 0, remulticast = 0, timeouts = 0, chunks = 0, gathered = 0,
           duplicates = 0, refused = 0;
};
Outcome run_schedule(const Schedule& schedule);

}  // namespace mcast::test
