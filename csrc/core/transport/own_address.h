// An address of this host among which a transport may choose, with the properties that the choice
// uses.
#pragma once

#include <cstdint>
#include <string>

#include "base/ip_address.h"

namespace mcast {

struct OwnAddress {
  std::string interface;
  IpAddress address{};
  uint32_t prefix = 32;  // bits of its network
  uint32_t speed = 0;    // of the link, Mbit/s; 0: not known
  bool near = false;     // on the NUMA node of this process's CPUs, if it is restricted
  bool route = false;    // leads to the job's store; if that is not known: default route

  IpNetwork network() const { return IpNetwork::around(address, prefix); }
};

}  // namespace mcast
