// The transport contract over verbs, on the device in memory. (On a real or Soft-RoCE device:
// tests/cpp/verbs_device.)
#include "transport/transport_contract.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(FakeVerbs, TransportContract, FakeVerbsWorld);

}  // namespace mcast::testing
