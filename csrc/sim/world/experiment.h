// One question to the simulator (a network, the operations on it, an algorithm, and faults) and its
// answer. Times are nanoseconds of virtual time; bytes on links are wire bytes.
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
#include "sim/network/heap_meter.h"
#include "sim/network/sim_options.h"
#include "sim/world/result.h"
#include "sim/world/schedules/schedule.h"

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
  double factor = 1;  // of the rate of its host's links, in both directions
};

// Streams of `size` bytes from random hosts to random other hosts, at random times (Poisson), which
// take `load` of the hosts' links on average. 0: none.
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
  bool lossless = false;  // full ports pause the senders upstream instead of dropping
  uint32_t nic_queues = 1;
  uint64_t nic_limit = 0;  // bytes of a transmit queue; 0: no limit
  bool trees_by_source = false;
  uint32_t train = 64;         // most packets that move together
  uint32_t frame = 38;         // wire bytes of a packet besides IP: Ethernet, preamble and gap
  uint64_t shaper = 0;         // bytes that pass a host's links at full speed (tbf); 0: no shaper
  bool cork = false;           // small writes wait for earlier ones at the interface
  uint32_t ack_every = 2;      // packets per acknowledgement of a stream
  uint64_t budget = 16 << 20;  // bytes that a receiver's socket holds
  uint64_t send_queue = 1 << 20;  // bytes that a sender's socket holds
  uint32_t bookkeeping = 0;       // bytes of that budget that each datagram takes besides its own
};

// Aggregators run on hosts of their own, spread among the others.
struct AggregatorHosts {
  uint32_t count = 0;
  double rate = 0;  // bytes per second of their links; 0: same as hosts'
};

inline constexpr const char* kWithAggregators = "mcast-aggregators";

// How often the operations are run before the measured run, by a group that adapts to the network;
// and the virtual time allowed for each.
struct Course {
  uint32_t warmup = 0;
  Nanos limit = 600 * kSecond;
};

struct ExperimentSpec {
  std::string text;  // the text as given
  NetworkSpec net;
  uint32_t hosts = 8;
  uint32_t ranks = 1;                                   // of each host
  std::vector<Collective> ops{Collective::kAllGather};  // all at once, the i-th on lane i
  uint64_t size = 0;  // as nccl-tests defines it: the larger of one rank's input and output
  RankId root = 0;
  bool shuffled = false;             // ranks are assigned to hosts in an order drawn from the seed
  Element type = Element::kFloat32;  // of reductions
  std::string algorithm = "mcast";
  AggregatorHosts aggregators;  // hosts of mcast-aggregators
  uint64_t seed = 1;
  std::vector<LinkLoss> losses;
  std::vector<LateRank> late;
  std::vector<SlowRank> slow;
  BackgroundLoad background;
  // Time from the wake-up of a thread until it runs, and duration of a turn.
  Nanos wake = 20 * kMicro, turn = 2 * kMicro;
  Course course;
  std::map<std::string, std::string> settings;  // of the engine (base/config.h), checked

  uint32_t all_ranks() const { return hosts * ranks; }
  // Hosts that the topology has besides `hosts`.
  uint32_t extra_hosts() const { return algorithm == kWithAggregators ? aggregators.count : 0; }

  // Parses "hosts=188 rate=56gbit op=all_gather block=64K ...": words key=value in any order; keys
  // that are missing have the defaults above. Keys that are not options of the experiment are
  // settings of the engine. An error is one line that says what is wrong and what is allowed.
  static Result<ExperimentSpec> parse(std::string_view text);
};

// "broadcast", "all_gather", ...
const char* collective_name(Collective op) noexcept;

// Bytes of a full packet: the payload, and the packet with all headers including those of the wire.
struct Framing {
  uint32_t datagram_payload = 0, datagram_overhead = 0;
  uint32_t stream_payload = 0, stream_overhead = 0;
};
Framing framing_of(const ExperimentSpec& spec);
// Returns true if the setting `security` is not off.
bool is_guarded(const ExperimentSpec& spec);
// The network of this experiment, for a SimNetwork or a Fabric.
SimFabric fabric_of(const ExperimentSpec& spec);
// Returns true if links of class "leaf-spine up" are selected: `where` is "", "leaf-spine" or
// "leaf-spine-up".
bool loss_is_at(std::string_view link_class, std::string_view where);
// Rank r runs on the element r / spec.ranks.
std::vector<HostId> order_of_hosts(const ExperimentSpec& spec);
// The hosts of the aggregators.
std::vector<HostId> hosts_of_aggregators(const ExperimentSpec& spec);
// Sets the links of aggregators to their rate.
void set_aggregator_links(const ExperimentSpec& spec, Fabric& fabric);
// Sets losses and slow hosts on the links, if there are any.
void set_link_faults(const ExperimentSpec& spec, Fabric& fabric);
// The part of the work that the product's planner assigns to aggregators
// (aggregation/plan/station_deal.h).
Served served_by_aggregators(const ExperimentSpec& spec);
// Lower bound of the time of the experiment's operations, run concurrently: the bytes that a host's
// interfaces must still receive, at the rate of their links minus the smaller overhead of datagrams
// and streams; for exchanges also the bytes that it must send. With aggregators: the bytes that
// pass the busiest interface in either direction, with the part that the planner assigns to
// aggregators.
Nanos bound_of(const ExperimentSpec& spec);

// Called now and then with the virtual time and the share of the work that is done; may be empty.
using Progress = std::function<void(Nanos now, double done)>;
// Observers of a run.
struct Watch {
  Progress progress;
  HeapMeter* meter = nullptr;  // null: states of ranks are not known
};
inline constexpr uint64_t kBetweenReports = 1 << 16;  // events

// Runs the experiment with spec.algorithm: mcast, mcast-aggregators, ring (the engine's ring for
// broadcasts and all-gathers), ring-schedule, recursive-doubling, binomial, chain or direct.
Result<OpResult> run_experiment(const ExperimentSpec& spec, const Watch& watch = {});
// Runs it with the real engine over the simulated network; `algorithm`: "mcast",
// "mcast-aggregators" or "ring".
Result<OpResult> run_on_engine(const ExperimentSpec& spec, const std::string& algorithm,
                               const Watch& watch = {});

}  // namespace mcast::sim
