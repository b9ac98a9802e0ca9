// Common part of the contract suite's worlds over real transports: real time, and addresses that no
// other test program uses.
#pragma once

#include <unistd.h>

#include <chrono>
#include <vector>

#include "transport/transport.h"

namespace mcast::testing {

class RealTimeWorld {
 public:
  Nanos now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void pass(const std::vector<Transport*>& all) {
    if (!all.empty()) all[turn_++ % all.size()]->wait(kMilli);
  }

 protected:
  // The process id gives test programs that run at the same time different addresses.
  static MulticastAddress own_address(int n, bool loopback) {
    const auto pid = static_cast<uint32_t>(::getpid());
    return {(pid << 8) + static_cast<uint32_t>(n), static_cast<uint16_t>(20000 + pid % 30000),
            loopback};
  }

 private:
  size_t turn_ = 0;
};

}  // namespace mcast::testing
