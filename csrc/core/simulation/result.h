// What an experiment found. Threads: immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/types.h"
#include "simulation/schedules/schedule.h"
#include "transport/sim/fabric.h"
#include "transport/sim/traffic.h"

namespace mcast::sim {

// Of one operation. Times count from when the ranks that are not late call it.
struct OpTimes {
  Collective op = Collective::kBroadcast;
  Nanos time = 0;                       // until the last rank is done
  Nanos bound = 0;                      // least time of all operations of the experiment
  Nanos first_byte = 0, last_byte = 0;  // data that arrives at any host
  std::vector<Nanos> per_rank;
};

// Of all links of one class and direction.
struct LinkClassResult {
  std::string name;                          // "leaf-spine up"
  LinkTraffic sum;                           // its peak is the highest
  uint64_t links = 0, most = 0, middle = 0;  // bytes of the fullest link, and the median
  std::vector<uint64_t> bytes;               // by link
};

struct HottestLink {
  std::string name;  // "h17 down"
  uint64_t bytes = 0;
  double use = 0;  // share of the time in which it sends
};

// Sent by ranks: of all, and of the rank that sent most.
struct FrameCounts {
  uint64_t all = 0, most = 0;
  uint32_t rank = 0;
};

// Most bytes that waited.
struct Peaks {
  double port = 0;
  std::string port_name;  // the link
};

struct OpResult {
  std::string algorithm;
  std::vector<OpTimes> ops;
  std::vector<LinkClassResult> links;
  uint64_t fabric_bytes = 0;          // over all links, both ways
  double host_up = 0, host_down = 0;  // bytes of one host's interfaces, the mean
  // The same of aggregators, which do not count as hosts there, and the most of any.
  double aggregator_up = 0, aggregator_down = 0;
  uint64_t aggregator_most = 0;
  std::array<Amount, kTrafficClasses> sent{};  // what hosts sent, by class
  HottestLink hottest;

  FrameCounts frames;
  Peaks peaks;
  // Bytes of a rank of the engine: the mean when its group is made, the most of any rank. 0:
  // unknown.
  uint64_t state_idle = 0, state_peak = 0;
  std::map<std::string, uint64_t> counters;  // sums over ranks, of the engine

  double bin = 0;                        // ns of a bin of the timeline
  std::vector<Timeline::Bins> timeline;  // by link class, as `links`
  uint64_t events = 0;
  uint64_t trace_hash = 0;

  // Until the last operation is done.
  Nanos took() const;
};

// Fills in what a fabric knows: links, sums, the fullest link, when data came (to operations that
// are carried out at once together). `start`: when accounts were reset; `aggregators`: hosts, in
// ascending order.
void account_fabric(const Fabric& fabric, Nanos start, OpResult* result,
                    const std::vector<HostId>& aggregators = {});
// "h17 down", "leaf 3 to spine 2", "spine 2 to leaf 3"; planes after the first are said.
std::string link_name(const Topology& topology, LinkId link);

}  // namespace mcast::sim
