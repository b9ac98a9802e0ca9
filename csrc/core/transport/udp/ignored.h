// Multicast that nobody reads.
#pragma once

#include <cstdint>

namespace mcast {

// Multicast and broadcast datagrams, of the calling thread's network namespace since it was made,
// that came for an address which the host is a member of and a port at which nobody listens (UDP's
// IgnoredMulti). They take the link like others. 0 where the kernel does not say. Reads a file.
uint64_t ignored_multicasts();

}  // namespace mcast
