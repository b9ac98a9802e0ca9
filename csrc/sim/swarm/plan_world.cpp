// Converts a plan to the options of a network, of its ranks, and of its aggregators, which are on
// the hosts after those of the ranks.
#include "sim/swarm/plan_world.h"

#include <algorithm>

namespace mcast::sim {

namespace {

// Limits of datagrams and records so small that keys change within a plan.
constexpr crypto::EpochLimits kFewRecords{100, uint64_t{1} << 16, 1u << 24};

}  // namespace

WorldSpec world_of(const Plan& plan) {
  const PlannedWorld& w = plan.world;
  WorldSpec spec;
  spec.hosts = w.hosts;
  spec.ranks = w.ranks;
  spec.seed = spec.net.seed = w.seed;
  SimFabric fabric;
  fabric.links.topology = TopologySpec::parse(w.topology, plan.hosts()).value();
  fabric.links.seed = w.seed;
  PortSpec port;
  port.rate = w.rate;
  port.delay = static_cast<double>(w.delay);
  fabric.links.host_up = port;
  port.queue = static_cast<double>(w.queue);
  port.pause = static_cast<double>(w.lossless);
  port.resume = port.pause / 2;
  fabric.links.host_down = fabric.links.inner = port;
  fabric.links.nic_queues = w.nic_queues;
  fabric.links.nic_limit = w.interface;
  fabric.train = w.train;
  spec.net.fabric = fabric;
  spec.net.max_datagram = w.datagram;
  spec.net.receive_budget = w.budget;
  spec.net.bookkeeping = w.bookkeeping;
  spec.net.send_queue = w.send_queue;
  spec.net.jitter = w.jitter;
  if (w.gathers != 0) spec.net.gather_from = 1;
  spec.config = config_of(plan).value();
  spec.config.debug = "off";
  spec.guarding.epochs = kFewRecords;
  spec.ledgers = plan.ranks() > 64;
  spec.costs.wake = w.wake;
  spec.costs.command = w.command;
  spec.clock = [&plan](uint32_t rank) {
    for (const PlannedRank& r : plan.special) {
      if (r.rank == rank) return SimClock(r.offset, r.clock);
    }
    return SimClock(0, 1);
  };
  spec.costs_of = [&plan, costs = spec.costs](uint32_t rank) {
    LaneCosts mine = costs;
    for (const PlannedRank& r : plan.special) {
      if (r.rank != rank || r.slow <= 1) continue;
      mine.turn = static_cast<Nanos>(static_cast<double>(mine.turn) * r.slow);
      mine.per_datagram = 200 * r.slow;
    }
    return mine;
  };
  for (const PlannedAggregator& planned : plan.aggregators) {
    AggregatorSpec& one = spec.aggregators.emplace_back();
    one.host = w.hosts + static_cast<HostId>(spec.aggregators.size()) - 1;
    one.options.lanes = static_cast<uint32_t>(planned.lanes);
    one.options.quota = planned.quota;
    one.costs = spec.costs;
    one.costs.turn = static_cast<Nanos>(static_cast<double>(one.costs.turn) * planned.slow);
    one.clock = SimClock(planned.offset, planned.clock);
  }
  return spec;
}

Operation operation_of(const Plan& plan, uint32_t op, Member member) {
  const PlannedOp& planned = plan.ops[op];
  Operation operation;
  operation.kind = planned.kind;
  operation.id = op + 1;
  operation.bytes = planned.odd == member ? planned.odd_bytes : planned.bytes;
  operation.splits = planned.splits;
  operation.root = static_cast<Member>(planned.root);
  operation.how = {planned.element, planned.reduction, 1};
  operation.timeout = planned.timeout;
  return operation;
}

std::vector<Member> absent_from(const Plan& plan, size_t group) {
  const std::vector<uint32_t>& ranks = plan.groups[group].ranks;
  std::vector<Member> absent;
  for (const PlannedFault& fault : plan.faults) {
    if (fault.what != FaultKind::kAbsent || fault.group != group) continue;
    const auto at = std::find(ranks.begin(), ranks.end(), fault.rank);
    if (at != ranks.end()) absent.push_back(static_cast<Member>(at - ranks.begin()));
  }
  return absent;
}

}  // namespace mcast::sim
