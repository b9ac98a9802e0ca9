// The contract suite's World over verbs: endpoints of one process on one device, in real time.
#pragma once

#include <gtest/gtest.h>
#include <memory>

#include "transport/real_time_world.h"
#include "transport/verbs/endpoints.h"
#include "transport/verbs/verbs_transport.h"
#include "verbs/fake_verbs.h"

namespace mcast::testing {

struct VerbsWorld : RealTimeWorld {
  static constexpr bool kDropsEcho = true;
  VerbsOptions options;

  VerbsWorld() { options.rcvbuf = 2 << 20; }
  MulticastAddress address(int n) const { return own_address(n, false); }
};

// Over the device in memory.
struct FakeVerbsWorld : VerbsWorld {
  std::unique_ptr<FakeVerbs> fake = std::make_unique<FakeVerbs>();

  FakeVerbsWorld() { options.loopback = true; }
  std::unique_ptr<Transport> make() {
    auto transport = verbs::make_transport(*fake, options);
    if (!transport.ok()) ADD_FAILURE() << transport.status().to_string();
    if (!transport.ok()) return nullptr;
    return std::unique_ptr<Transport>(std::move(transport).value());
  }
};

}  // namespace mcast::testing
