// The transport contract over verbs on this machine's RDMA device. All endpoints are in one
// process, so the device must loop multicast back. ctest does not run it;
// `tests/python/verbs/vm.py` has such a device.
#include "transport/transport_contract.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {

struct DeviceVerbsWorld : VerbsWorld {
  std::unique_ptr<Transport> make() {
    auto transport = make_verbs_transport(options);
    if (!transport.ok()) ADD_FAILURE() << transport.status().to_string();
    return transport.ok() ? std::move(transport).value() : nullptr;
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Device, TransportContract, DeviceVerbsWorld);

}  // namespace mcast::testing
