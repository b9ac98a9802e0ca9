// Limits the addresses to which a host engine connects for its clients. Clients give the addresses
// of their groups' members, and the engine's network is not theirs: without a limit any program
// that may connect to the engine could make it connect to any host that it can reach.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/ip_address.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast::service {

// Thread-safe.
class ReachPolicy {
 public:
  static constexpr uint16_t kLeastPort = 1024;  // lower ports are services of hosts

  // Allowed in addition to this host's own addresses; empty: the networks of its interfaces.
  explicit ReachPolicy(std::vector<IpNetwork> networks) : networks_(std::move(networks)) {}

  // `host`: as in a StreamAddress, one address or several joined by '+', of which all but the first
  // have a port of their own. kInvalidArgument names the address that is out of reach.
  Status may(const std::string& host, uint16_t port);
  // Returns true if the address is within reach.
  bool includes(const IpAddress& address);

 private:
  Status may_one(const Endpoint& to);
  void look(Nanos now);

  const std::vector<IpNetwork> networks_;
  std::mutex mutex_;  // guards the fields below
  std::vector<IpNetwork> allowed_;
  Nanos looked_ = kNever;
};

}  // namespace mcast::service
