// Where an engine of the host goes for its clients. They say where the members of their groups are,
// and its network is not theirs: without a bound any program that may connect to the engine could
// have it talk to whatever it can reach.
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
  static constexpr uint16_t kLeastPort = 1024;  // below are services of hosts

  // Besides this host's own addresses; empty: the networks of its interfaces.
  explicit Reach(std::vector<Ipv4Network> networks) : networks_(std::move(networks)) {}

  // `host`: as a StreamAddress has it, one address or several joined by '+', of which all but the
  // first bring a port of their own. kInvalidArgument names what is out of reach.
  Status may(const std::string& host, uint16_t port);
  // Whether the address, in host byte order, is within reach.
  bool includes(uint32_t address);

 private:
  Status may_one(uint32_t address, uint16_t port);  // in host byte order
  void look(Nanos now);

  const std::vector<Ipv4Network> networks_;
  std::mutex mutex_;  // of what follows
  std::vector<Ipv4Network> allowed_;
  Nanos looked_ = kNever;
};

}  // namespace mcast::service
