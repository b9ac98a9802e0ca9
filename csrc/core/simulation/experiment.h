// One question to the simulator: a network, operations on it, an algorithm, and what goes wrong;
// and the answer. Times are nanoseconds of virtual time, bytes on links are wire bytes.
//
// Threads: one per experiment; experiments share nothing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/element.h"
#include "base/status.h"
#include "simulation/result.h"
#include "simulation/schedules/schedule.h"
#include "transport/sim/heap_meter.h"
#include "transport/sim/sim_options.h"

namespace mcast::sim {

// Loss on all links of a kind: "leaf-spine", "host-leaf-down", or all of them if empty.
struct LinkLoss {
  double rate = 0, burst = 1;
  std::string where;
};

struct LateRank {
  RankId rank = 0;
  Nanos by = 0;
};

struct SlowRank {
  RankId rank = 0;
  double factor = 1;  // of the rate of its host's links, both ways
};

// Streams of `size` bytes from random hosts to random others, at random times (Poisson), which take
// `load` of the hosts' links on average. 0: none.
struct BackgroundLoad {
  double load = 0;
  uint64_t size = 1 << 20;
};

struct NetworkSpec {
  TopologySpec topology;
  double rate = 12.5e9,
         inner_rate = 0;  // bytes per second of hosts' and of other links; 0: as rate
  Nanos delay = kMicro;   // of each link
  uint32_t mtu = 4200;    // bytes of an IP packet
  uint64_t queue = 0;     // bytes at each port of a switch; 0: no limit
  uint64_t mark = 0;      // packets that find more bytes than this waiting are marked; 0: none
  bool lossless = false;  // full ports stop who feeds them instead of dropping
  uint32_t nic_queues = 1;
  uint64_t nic_limit = 0;  // bytes of a transmit queue; 0: no limit
  bool trees_by_source = false;
  uint32_t train = 64;         // most packets that move together
  uint32_t frame = 38;         // wire bytes of a packet beside IP: Ethernet, preamble and gap
  uint64_t shaper = 0;         // bytes that pass a host's links at full speed (tbf); 0: no shaper
  bool cork = false;           // small writes wait for earlier ones at the interface
  uint32_t ack_every = 2;      // packets that one acknowledgement of a stream is for
  uint64_t budget = 16 << 20;  // bytes that a receiver's socket holds
  uint64_t send_queue = 1 << 20;  // bytes that a sender's socket holds
  uint32_t bookkeeping = 0;       // bytes that each datagram takes of that beside its own
};

// Hosts of their own, spread among the others.
struct AggregatorHosts {
  uint32_t count = 0;
  double rate = 0;  // bytes per second of their links; 0: as hosts'
};

inline constexpr const char* kWithAggregators = "mcast-aggregators";

// How often the operations are run before the time that counts, by a group that learns from it; of
// virtual time for each.
struct Course {
  uint32_t warmup = 0;
  Nanos limit = 600 * kSecond;
};

struct ExperimentSpec {
  std::string text;  // as it was given
  NetworkSpec net;
  uint32_t hosts = 8;
  uint32_t ranks = 1;                                   // of each host
  std::vector<Collective> ops{Collective::kAllGather};  // all at once, the i-th on lane i
  uint64_t size = 0;  // as nccl-tests counts it: the larger of one rank's input and output
  RankId root = 0;
  bool shuffled = false;             // ranks are dealt to hosts in an order by the seed
  Element type = Element::kFloat32;  // of reductions
  std::string algorithm = "mcast";
  AggregatorHosts aggregators;  // of mcast-aggregators
  uint64_t seed = 1;
  std::vector<LinkLoss> losses;
  std::vector<LateRank> late;
  std::vector<SlowRank> slow;
  BackgroundLoad background;
  Nanos wake = 20 * kMicro, turn = 2 * kMicro;  // of a thread: until it runs, and what a turn takes
  Course course;
  std::map<std::string, std::string> settings;  // of the engine (base/config.h), checked

  uint32_t all_ranks() const { return hosts * ranks; }
  // What the topology has besides `hosts`.
  uint32_t extra_hosts() const { return algorithm == kWithAggregators ? aggregators.count : 0; }

  // "hosts=188 rate=56gbit op=all_gather block=64K ...": words key=value in any order; what is not
  // given is as above. Keys that are no option of the experiment are settings of the engine. An
  // error is one line: what, and what is allowed.
  static Result<ExperimentSpec> parse(std::string_view text);
};

// "broadcast", "all_gather", ...
const char* collective_name(Collective op) noexcept;

// Bytes of a full packet: payload, and all headers with those of the wire.
struct Framing {
  uint32_t datagram_payload = 0, datagram_overhead = 0;
  uint32_t stream_payload = 0, stream_overhead = 0;
};
Framing framing_of(const ExperimentSpec& spec);
// Setting `security` is not off.
bool is_guarded(const ExperimentSpec& spec);
// The network of this experiment, for a SimNetwork or a Fabric.
SimFabric fabric_of(const ExperimentSpec& spec);
// Whether links of the class "leaf-spine up" are meant by "", "leaf-spine" or "leaf-spine-up".
bool loss_is_at(std::string_view link_class, std::string_view where);
// The host of rank r is the element r / spec.ranks.
std::vector<HostId> order_of_hosts(const ExperimentSpec& spec);
// Those of the aggregators.
std::vector<HostId> hosts_of_aggregators(const ExperimentSpec& spec);
// The links of aggregators have their rate.
void set_aggregator_links(const ExperimentSpec& spec, Fabric& fabric);
// Losses and slow hosts, which are set on links when there are some.
void set_link_faults(const ExperimentSpec& spec, Fabric& fabric);
// What the product's planner gives to them (collective/station_deal.h).
Served served_by_aggregators(const ExperimentSpec& spec);
// The least time of its operations, all at once: what a host's interfaces lack, at the rate of
// their links less the smaller overhead of datagrams and streams; of exchanges also what it must
// send. With aggregators: what passes the busiest interface, one way or the other, with the part
// that the planner gives to them.
Nanos bound_of(const ExperimentSpec& spec);

// Is told of virtual time and of the share that is done, now and then; may be empty.
using Progress = std::function<void(Nanos now, double done)>;
// Who looks on.
struct Watch {
  Progress progress;
  HeapMeter* meter = nullptr;  // null: states of ranks are not known
};
inline constexpr uint64_t kBetweenReports = 1 << 16;  // events

// With spec.algorithm. Algorithms: mcast, mcast-aggregators, ring (the engine's own for broadcasts
// and all-gathers), ring-schedule, recursive-doubling, binomial, chain, direct.
Result<OpResult> run_experiment(const ExperimentSpec& spec, const Watch& watch = {});
// With the real engine over the simulated network; `algorithm`: "mcast", "mcast-aggregators" or
// "ring".
Result<OpResult> run_on_engine(const ExperimentSpec& spec, const std::string& algorithm,
                               const Watch& watch = {});

}  // namespace mcast::sim
