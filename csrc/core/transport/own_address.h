// An address of this host among which a transport may choose, with the properties that the choice
// uses.
#pragma once

#include <cstdint>
#include <string>

#include "base/ipv4_network.h"

namespace mcast {

struct OwnAddress {
  std::string interface;
  uint32_t address = 0;  // IPv4, in host byte order
  uint32_t prefix = 32;  // bits of its network
  uint32_t speed = 0;    // of the link, Mbit/s; 0: not known
  bool near = false;     // on the NUMA node of this process's CPUs, if it is restricted
  bool route = false;    // leads to the job's store; if that is not known: default route

  Ipv4Network network() const {
    const Ipv4Network bits{0, prefix};
    return {address & bits.mask(), prefix};
  }
};

}  // namespace mcast
