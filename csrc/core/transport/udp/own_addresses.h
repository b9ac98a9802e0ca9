// The addresses of this host that ranks of other hosts may use, for the choice of a network.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "transport/own_address.h"
#include "transport/udp/netif.h"

namespace mcast {

// Returns the source addresses of packets to `host`, a name or a number: one of IPv4, one of IPv6;
// none of a version that does not lead there, or leads there by loopback. May query a name server,
// once per name.
std::vector<IpAddress> sources_towards(const std::string& host);

// Returns the addresses that `pattern` (see netif.h) leaves to choose from, at most 32; a pattern
// that names interfaces leaves those of the one that it chooses: its address of either version, or
// only the one that the pattern names. `store`: host of the job's store; empty if
// not known.
std::vector<OwnAddress> own_addresses(const std::vector<Interface>& interfaces,
                                      const std::string& pattern, const std::string& store);

// CPUs of a list as sysfs writes it, "0-3,8".
std::vector<int> parse_cpu_list(const std::string& text);
// Returns true if a device of NUMA node `node` is near a process that may run on `allowed`;
// `nodes`: CPUs by node. A process that may run on all CPUs is not near any device.
bool near_to(int node, const std::vector<int>& allowed, const std::vector<std::vector<int>>& nodes);

}  // namespace mcast
