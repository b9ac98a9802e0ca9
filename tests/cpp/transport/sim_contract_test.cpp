// The transport contract over the simulated network: a star of single datagrams with ideal streams,
// and a fabric with trains and windows.
#include "transport/sim/sim_network.h"
#include "transport/transport_contract.h"

namespace mcast::testing {

struct SimWorld {
  // Without jitter datagrams keep their order, as the suite's byte comparisons want.
  static SimOptions options() {
    SimOptions o;
    o.jitter = 0;
    o.receive_budget = 4 << 20;
    return o;
  }
  explicit SimWorld(const SimOptions& o = options()) : network(o) {}

  SimNetwork network;
  Nanos time = 0;

  std::unique_ptr<Transport> make() { return network.attach(); }
  Nanos now() { return time; }
  void pass(std::vector<Transport*>) {
    time += 20 * kMicro;
    network.advance(time);
  }
  MulticastAddress address(int n) { return {static_cast<uint32_t>(n + 1), 7000, false}; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Sim, TransportContract, SimWorld);

struct FabricWorld : SimWorld {
  static SimOptions over_links() {
    SimOptions o = SimWorld::options();
    SimFabric fabric;
    fabric.links.topology = sim::TopologySpec::parse("leafspine:leaves=2,spines=2", 64).value();
    fabric.links.host_up = fabric.links.host_down =
        fabric.links.inner = {1.25e9, 1000, 0, 0, 0, 0, 0};
    o.send_queue = 4 << 20;
    o.fabric = fabric;
    return o;
  }
  FabricWorld() : SimWorld(over_links()) {}
};

INSTANTIATE_TYPED_TEST_SUITE_P(Fabric, TransportContract, FabricWorld);

}  // namespace mcast::testing
