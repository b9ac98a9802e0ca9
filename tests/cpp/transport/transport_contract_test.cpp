// Runs the contract suite over UDP and TCP on loopback, with and without segmentation offload.
#include "transport/transport_contract.h"

#include "transport/udp_world.h"

namespace mcast::testing {
namespace {

struct UdpWithoutOffloads : UdpWorld {
  UdpWithoutOffloads() { options.gso = options.gro = false; }
};
struct UdpWithoutGro : UdpWorld {
  UdpWithoutGro() { options.gro = false; }
};
// Loopback groups on an endpoint that may have chosen another interface.
struct UdpLoopbackGroups : UdpWorld {
  UdpLoopbackGroups() { loopback = true; }
};

// Lanes striped over three addresses.
struct UdpStriped : UdpWorld {
  UdpStriped() { loopback = true; }
  std::unique_ptr<Transport> make() { return make_striped(3); }
};

using Worlds =
    ::testing::Types<UdpWorld, UdpWithoutOffloads, UdpWithoutGro, UdpLoopbackGroups, UdpStriped>;
INSTANTIATE_TYPED_TEST_SUITE_P(Udp, TransportContract, Worlds);

}  // namespace
}  // namespace mcast::testing
