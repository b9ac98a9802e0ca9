// The way out of the state machine of a host's ranks.
#pragma once

#include "base/status.h"
#include "host/control_block.h"

namespace mcast {

// Called by whoever drives the HostCore, on its thread.
class HostPort {
 public:
  virtual ~HostPort() = default;
  // Copies `length` bytes at `address` of `from`'s address space. Not ok: it is gone or refuses.
  virtual Status read(Member from, uint64_t address, std::byte* to, size_t length) = 0;
  virtual void wake(Member member, HostWaiter waiter) = 0;
  // Every rank's waiters on every lane, this one's too: the failure record was written, or somebody
  // left.
  virtual void wake_all() = 0;
  virtual Nanos now() = 0;
};

}  // namespace mcast
