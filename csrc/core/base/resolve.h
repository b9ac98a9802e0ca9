// Addresses of a host by its name, or by its number, which needs no look-up.
#pragma once

#include <string>
#include <vector>

#include "base/ip_address.h"
#include "base/status.h"

namespace mcast {

// Addresses of `host` in the order in which they should be tried (RFC 6724), each with `port`; at
// least one. Blocks while a name is looked up. kUnavailable, with the resolver's reason.
Result<std::vector<Endpoint>> resolve_host(const std::string& host, uint16_t port);

}  // namespace mcast
