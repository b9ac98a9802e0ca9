// Counts multicast datagrams that no socket reads.
#pragma once

#include <cstdint>

namespace mcast {

// Number of multicast and broadcast datagrams that arrived for an address of which the host is a
// member, at a port on which no socket listens (UDP's IgnoredMulti). Counted for the calling
// thread's network namespace, since the namespace was created. They use the link like any other
// traffic. Returns 0 where the kernel does not report it. Reads a file.
uint64_t ignored_multicasts();

}  // namespace mcast
