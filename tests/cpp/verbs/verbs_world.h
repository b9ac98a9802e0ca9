// The contract suite's World over verbs: endpoints of one process on one device, in real time.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <vector>

#include "transport/verbs/endpoints.h"
#include "transport/verbs/verbs_transport.h"
#include "verbs/fake_verbs.h"

namespace mcast::testing {

struct VerbsWorld {
  static constexpr bool kDropsEcho = true;
  VerbsOptions options;

  VerbsWorld() { options.rcvbuf = 2 << 20; }
  Nanos now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void pass(const std::vector<Transport*>& all) {
    if (!all.empty()) all[turn_++ % all.size()]->wait(kMilli);
  }
  MulticastAddress address(int n) const {
    const auto pid = static_cast<uint32_t>(::getpid());
    return {(pid << 8) + static_cast<uint32_t>(n), static_cast<uint16_t>(20000 + pid % 30000),
            false};
  }

 private:
  size_t turn_ = 0;
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
