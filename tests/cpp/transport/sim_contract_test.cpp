// The transport contract over the simulated network.
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
  SimNetwork network{options()};
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

}  // namespace mcast::testing
