// Accepting connections where descriptors may run out.
#pragma once

#include <netinet/in.h>

#include "base/fd.h"
#include "base/types.h"

namespace mcast {

// A listener that cannot accept is not looked at for this long: it stays readable, and its thread
// would spin.
inline constexpr Nanos kAcceptPause = 100 * kMilli;

struct Accepted {
  Fd fd;  // non-blocking; invalid: there is none
  sockaddr_in from{};
  int error = 0;  // why a connection that waits cannot be accepted; 0: none waits
};

// The next connection of a TCP listener. Where this process may have no more descriptors it raises
// its limit by `more` first, if it may.
Accepted accept_connection(int listener, uint64_t more) noexcept;

}  // namespace mcast
