// Worlds for tests (sim/world/world.h).
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "sim/world/world.h"

namespace mcast::test {

inline constexpr double kTenGigabit = 1.25e9;  // bytes per second

// Hosts with one rank each and links of `rate` bytes per second.
inline sim::WorldSpec world_of(uint32_t hosts, const std::string& topology,
                               double rate = kTenGigabit) {
  sim::WorldSpec spec;
  spec.hosts = hosts;
  SimFabric fabric;
  fabric.links.topology = sim::TopologySpec::parse(topology, hosts).value();
  fabric.links.host_up = fabric.links.host_down = fabric.links.inner = {rate, 5000, 0, 0, 0, 0, 0};
  spec.net.fabric = fabric;
  spec.net.jitter = 0;
  spec.net.receive_budget = 4 << 20;
  return spec;
}

// Sets the loss of all links from now on.
inline void lose(sim::World& world, double loss) {
  sim::Fabric& fabric = world.network().fabric();
  for (sim::LinkId id = 0; id < fabric.topology().links(); id++) fabric.set_loss(id, loss, 2);
}

using Outcomes = std::vector<std::shared_ptr<const sim::Outcome>>;

template <typename Which>
bool all_over(const Outcomes& all, Which which) {
  return std::all_of(all.begin(), all.end(),
                     [&](const auto& one) { return !which(one->member) || one->over(); });
}
inline bool all_over(const Outcomes& all) {
  return all_over(all, [](Member) { return true; });
}

// Returns "" if the operation succeeded.
inline std::string what_is_wrong(const sim::Outcome& one) {
  if (one.good()) return "";
  const std::string who = "operation " + std::to_string(one.operation.id) + " at rank " +
                          std::to_string(one.member) + ": ";
  if (one.ends != 1) return who + "ended " + std::to_string(one.ends) + " times";
  return who + (one.status.ok() ? one.wrong : one.status.message());
}

}  // namespace mcast::test
