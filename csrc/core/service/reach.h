// Limits the addresses to which a host engine connects for its clients. Clients give the addresses
// of their groups' members, and the engine's network is not theirs: without a limit any program
// that may connect to the engine could make it connect to any host that it can reach.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/ipv4_network.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast::service {

// Thread-safe.
class Reach {
 public:
  static constexpr uint16_t kLeastPort = 1024;  // lower ports are services of hosts

  // Allowed in addition to this host's own addresses; empty: the networks of its interfaces.
  explicit Reach(std::vector<Ipv4Network> networks) : networks_(std::move(networks)) {}

  // `host`: as in a StreamAddress, one address or several joined by '+', of which all but the first
  // have a port of their own. kInvalidArgument names the address that is out of reach.
  Status may(const std::string& host, uint16_t port);
  // Returns true if the address, in host byte order, is within reach.
  bool includes(uint32_t address);

 private:
  Status may_one(uint32_t address, uint16_t port);  // in host byte order
  void look(Nanos now);

  const std::vector<Ipv4Network> networks_;
  std::mutex mutex_;  // guards the fields below
  std::vector<Ipv4Network> allowed_;
  Nanos looked_ = kNever;
};

}  // namespace mcast::service
