// The way out of the state machine of a host's ranks.
#pragma once

#include "base/region.h"
#include "base/status.h"
#include "host/control_block.h"

namespace mcast {

// Called by whoever drives the HostCore, on its thread.
class HostPort {
 public:
  virtual ~HostPort() = default;
  // What tells peers where memory of this process is: its address, or, with kInArena, where it lies
  // in the process's ArenaPool, or, among ranks that one process runs, its address. Numbers of
  // bytes may be added.
  static constexpr uint64_t kInArena = uint64_t{1} << 63;
  virtual uint64_t place_of(const Slice& slice) { return reinterpret_cast<uint64_t>(slice.data()); }
  // Copies `length` bytes at `place` of `from`. Not ok: it is gone or refuses.
  virtual Status read(Member from, uint64_t place, std::byte* to, size_t length) = 0;
  // Where this process has the same mapped; null: nowhere. Valid until the next call for the same
  // rank, or the end of the turn.
  virtual const std::byte* map(Member /*from*/, uint64_t /*place*/, size_t /*length*/) {
    return nullptr;
  }
  virtual void wake(Member member, HostWaiter waiter) = 0;
  // Every rank's waiters on every lane, this one's too: the failure record was written, or somebody
  // left.
  virtual void wake_all() = 0;
  virtual Nanos now() = 0;
};

}  // namespace mcast
