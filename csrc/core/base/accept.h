// Accepts connections when descriptors may run out.
#pragma once

#include "base/fd.h"
#include "base/ip_address.h"
#include "base/types.h"

namespace mcast {

// A listener that cannot accept is not polled for this long: it stays readable, and its thread
// would spin.
inline constexpr Nanos kAcceptPause = 100 * kMilli;

struct Accepted {
  Fd fd;  // non-blocking; invalid: no connection
  Endpoint from{};
  int error = 0;  // reason why a waiting connection cannot be accepted; 0: none waits
};

// The next connection of a TCP listener. If the process has reached its limit of descriptors, it
// first raises the limit by `more`, if it is allowed to.
Accepted accept_connection(int listener, uint64_t more) noexcept;

}  // namespace mcast
