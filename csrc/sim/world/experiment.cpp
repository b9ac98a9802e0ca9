// Converts an experiment to a network. Stream segments fill the MTU and have 52 bytes of IPv4 and
// TCP headers (timestamps included); datagrams have 28 bytes of IPv4 and UDP headers besides
// mcast's own. A packet takes 38 more bytes on the wire (Ethernet, preamble, gap), or the value of
// `frame`.
#include "sim/world/experiment.h"

#include <algorithm>
#include <utility>

#include "aggregation/plan/station_deal.h"
#include "base/config.h"
#include "base/rng.h"
#include "base/units.h"
#include "sim/world/run_schedules.h"
#include "sim/world/schedules/schedules.h"
#include "wire/guarded_datagram.h"

namespace mcast::sim {
namespace {

constexpr uint32_t kHeader = wire::kDatagramHeader, kUdp = 28, kTcp = 52;
constexpr double kPause = 128 * 1024;

// Multiples of the size that the most loaded receiving host must receive. `ranks`: of each host;
// `others`: share of all ranks that are on other hosts.
double receive_share(Collective op, double others, uint32_t ranks) {
  switch (op) {
    case Collective::kBroadcast:
      return 1;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
      return others;
    case Collective::kAllReduce:
      return 2 * others;
    case Collective::kAllToAll:
      return others * ranks;
    case Collective::kScatter:
      return 1 - others;
  }
  return 0;
}

// Multiples of the size that the most loaded sending host must send. Only exchanges count: nobody
// else can send their blocks.
double exchange_share(Collective op, double others, uint32_t ranks) {
  if (op == Collective::kAllToAll) return others * ranks;
  if (op == Collective::kScatter) return others;
  return op == Collective::kGather ? 1 - others : 0;
}

// Placement of the experiment's reduction. The planner weights an aggregator by the ratio of its
// link rate to a worker's.
Placement placement_of(const ExperimentSpec& spec) {
  const Result<Config> config = Config::resolve(spec.settings, {});
  if (!config.ok()) return {};
  Agreed agreed;
  agreed.members = spec.all_ranks();
  agreed.contributors = spec.hosts;
  agreed.incast = config->incast;
  agreed.fold = fold_order(config->fold);
  agreed.aggregate = aggregate_mode(config->aggregate);
  wire::Descriptor reduction;
  reduction.kind = wire::Kind::kReduceScatter;
  reduction.bytes = spec.size / spec.all_ranks();
  reduction.element = static_cast<uint8_t>(spec.type);
  if (std::find(spec.ops.begin(), spec.ops.end(), Collective::kAllReduce) != spec.ops.end()) {
    reduction.kind = wire::Kind::kAllreduce;
    reduction.bytes *= spec.all_ranks();
  }
  const double speed = spec.aggregators.rate > 0 ? spec.aggregators.rate / spec.net.rate : 1;
  std::vector<Station> stations(spec.aggregators.count);
  for (Station& station : stations) station.capacity = static_cast<uint32_t>(speed * kWhole);
  return deal_out(reduction, agreed, 0, stations).placement;
}

// Multiples of the size that pass the busiest interface.
double busiest_share(const ExperimentSpec& spec) {
  const double others = static_cast<double>(spec.hosts - 1) / spec.hosts;
  const Placement placement = spec.extra_hosts() > 0 ? placement_of(spec) : Placement{};
  if (placement.part > 0) {
    const bool alone = spec.ops == std::vector{Collective::kReduceScatter};
    return static_cast<double>(alone ? placement.alone : placement.planned) / kWhole;
  }
  double in = 0, out = 0;
  for (const Collective op : spec.ops) {
    in += receive_share(op, others, spec.ranks);
    out += exchange_share(op, others, spec.ranks);
  }
  return std::max(in, out);
}

}  // namespace

const char* collective_name(Collective op) noexcept {
  static constexpr const char* kNames[] = {
      "broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "gather", "scatter"};
  return kNames[static_cast<size_t>(op)];
}

bool is_guarded(const ExperimentSpec& spec) {
  const auto at = spec.settings.find("security");
  return at != spec.settings.end() && at->second != "off";
}

Framing framing_of(const ExperimentSpec& spec) {
  uint64_t chunk = 0;
  const uint32_t header = kHeader + (is_guarded(spec) ? wire::kGuardedExtra : 0);
  if (const auto at = spec.settings.find("chunk"); at != spec.settings.end()) {
    (void)parse_size(at->second, chunk);
  }
  if (chunk == 0) chunk = (spec.net.mtu - kUdp - header) / 64 * 64;
  Framing framing;
  framing.datagram_payload = static_cast<uint32_t>(chunk);
  framing.datagram_overhead = header + kUdp + spec.net.frame;
  framing.stream_payload = spec.net.mtu - kTcp;
  framing.stream_overhead = kTcp + spec.net.frame;
  return framing;
}

SimFabric fabric_of(const ExperimentSpec& spec) {
  SimFabric fabric;
  FabricOptions& links = fabric.links;
  links.topology = spec.net.topology;
  links.seed = spec.seed;
  PortSpec port;
  port.rate = spec.net.rate;
  port.delay = static_cast<double>(spec.net.delay);
  port.burst = static_cast<double>(spec.net.shaper);
  links.host_up = port;
  port.queue = static_cast<double>(spec.net.queue);
  port.mark = static_cast<double>(spec.net.mark);
  if (spec.net.lossless) {
    port.pause = spec.net.queue > 0 ? port.queue / 2 : kPause;
    port.resume = port.pause / 2;
  }
  links.host_down = links.inner = port;
  links.inner.burst = 0;
  if (spec.net.inner_rate > 0) links.inner.rate = spec.net.inner_rate;
  links.trees_by_source = spec.net.trees_by_source;
  links.nic_queues = spec.net.nic_queues;
  links.nic_limit = spec.net.nic_limit;
  fabric.flows.segment = framing_of(spec).stream_payload;
  fabric.flows.overhead = static_cast<uint16_t>(kTcp + spec.net.frame);
  fabric.host_endpoints = spec.ranks;
  fabric.train = spec.net.train;
  fabric.flows.train = spec.net.train;
  fabric.flows.ack = static_cast<uint16_t>(kTcp + spec.net.frame);
  fabric.flows.ack_every = spec.net.ack_every;
  fabric.flows.cork = spec.net.cork;
  fabric.overhead = static_cast<uint16_t>(kUdp + spec.net.frame);
  return fabric;
}

// Spaces aggregators evenly among the other hosts, so that every switch has its share of them.
std::vector<HostId> hosts_of_aggregators(const ExperimentSpec& spec) {
  const uint64_t count = spec.extra_hosts(), all = spec.hosts + count;
  std::vector<HostId> hosts;
  for (uint64_t i = 0; i < count; i++) {
    hosts.push_back(static_cast<HostId>((i + 1) * all / count - 1));
  }
  return hosts;
}

void set_aggregator_links(const ExperimentSpec& spec, Fabric& fabric) {
  const Topology& topology = fabric.topology();
  for (const HostId host : hosts_of_aggregators(spec)) {
    for (unsigned plane = 0; plane < topology.planes(); plane++) {
      const LinkId up = topology.host_link(plane, host);
      for (const LinkId id : {up, Topology::reverse(up)}) {
        if (spec.aggregators.rate > 0) fabric.set_rate(id, spec.aggregators.rate);
      }
    }
  }
}

std::vector<HostId> order_of_hosts(const ExperimentSpec& spec) {
  const std::vector<HostId> others = hosts_of_aggregators(spec);
  std::vector<HostId> order;
  for (HostId h = 0; h < spec.hosts + spec.extra_hosts(); h++) {
    if (!std::binary_search(others.begin(), others.end(), h)) order.push_back(h);
  }
  Rng rng(mix64(spec.seed + 0x6f72646572));
  for (uint32_t left = spec.shuffled ? spec.hosts : 0; left > 1; left--) {
    std::swap(order[left - 1], order[rng.below(left)]);
  }
  return order;
}

bool loss_is_at(std::string_view link_class, std::string_view where) {
  if (where.size() > link_class.size()) return false;
  for (size_t i = 0; i < where.size(); i++) {
    if (where[i] != (link_class[i] == ' ' ? '-' : link_class[i])) return false;
  }
  return where.empty() || where.size() == link_class.size() || link_class[where.size()] == ' ';
}

void set_link_faults(const ExperimentSpec& spec, Fabric& fabric) {
  const Topology& topology = fabric.topology();
  for (LinkId id = 0; id < topology.links(); id++) {
    for (const LinkLoss& loss : spec.losses) {
      if (!loss_is_at(topology.class_name(topology.link(id)), loss.where)) continue;
      fabric.set_loss(id, loss.rate, loss.burst);
    }
  }
  const std::vector<HostId> hosts = order_of_hosts(spec);
  for (const SlowRank& slow : spec.slow) {
    for (unsigned plane = 0; plane < topology.planes(); plane++) {
      const LinkId up = topology.host_link(plane, hosts[slow.rank / spec.ranks]);
      for (const LinkId id : {up, Topology::reverse(up)}) {
        fabric.set_rate(id, fabric.port(id).spec().rate * slow.factor);
      }
    }
  }
}

Served served_by_aggregators(const ExperimentSpec& spec) {
  const Placement placement = placement_of(spec);
  return {static_cast<double>(placement.part) / kWhole, placement_text(placement.reason)};
}

Nanos bound_of(const ExperimentSpec& spec) {
  const double bytes = busiest_share(spec) * static_cast<double>(spec.size);
  const Framing framing = framing_of(spec);
  const double wire =
      1 + std::min(framing.datagram_overhead / static_cast<double>(framing.datagram_payload),
                   framing.stream_overhead / static_cast<double>(framing.stream_payload));
  return static_cast<Nanos>(bytes * wire / (spec.net.rate * spec.net.topology.planes) * 1e9);
}

Result<OpResult> run_experiment(const ExperimentSpec& spec, const Watch& watch) {
  const bool gathers = std::none_of(spec.ops.begin(), spec.ops.end(), [](Collective op) {
    return op == Collective::kReduceScatter || op == Collective::kAllReduce;
  });
  if (spec.algorithm == "mcast" || spec.algorithm == kWithAggregators ||
      (spec.algorithm == "ring" && gathers)) {
    return run_on_engine(spec, spec.algorithm, watch);
  }
  const std::string name = spec.algorithm == "ring" ? "ring-schedule" : spec.algorithm;
  std::vector<std::unique_ptr<Schedule>> schedules;
  for (const Collective op : spec.ops) {
    schedules.push_back(make_schedule(name, op, {spec.all_ranks(), spec.size, spec.root}));
    if (schedules.back() == nullptr) {
      return Status(Code::kInvalidArgument, name + " has no schedule for " + collective_name(op));
    }
  }
  return run_schedules(spec, std::move(schedules), watch.progress);
}

}  // namespace mcast::sim
