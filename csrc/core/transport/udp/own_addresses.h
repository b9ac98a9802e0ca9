// The addresses of this host that ranks of other hosts may use, for the choice of a network.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "transport/own_address.h"
#include "transport/udp/netif.h"

namespace mcast {

// Returns the source address of packets to `host`, a name or a number; 0.0.0.0 if it is not known
// or is loopback. May query a name server, once per name.
in_addr source_towards(const std::string& host);

// Returns the addresses that `pattern` (see netif.h) leaves to choose from, at most 32; a pattern
// that names interfaces leaves the one that it chooses. `store`: host of the job's store; empty if
// not known.
std::vector<OwnAddress> own_addresses(const std::vector<Interface>& interfaces,
                                      const std::string& pattern, const std::string& store);

// CPUs of a list as sysfs writes it, "0-3,8".
std::vector<int> parse_cpu_list(const std::string& text);
// Returns true if a device of NUMA node `node` is near a process that may run on `allowed`;
// `nodes`: CPUs by node. A process that may run on all CPUs is not near any device.
bool near_to(int node, const std::vector<int>& allowed, const std::vector<std::vector<int>>& nodes);

}  // namespace mcast
