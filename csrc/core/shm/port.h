// Interface through which the state machine of a host's ranks reaches memory and other ranks.
#pragma once

#include "base/region.h"
#include "base/status.h"
#include "shm/control_block.h"

namespace mcast {

// Called by the driver of the HostCore, on its thread.
class HostPort {
 public:
  virtual ~HostPort() = default;
  // The place by which peers find memory of this process: its address; or, with kInArena, its
  // offset in the process's ArenaPool; or, among ranks that one process runs, its address. Byte
  // offsets may be added to it.
  static constexpr uint64_t kInArena = uint64_t{1} << 63;
  virtual uint64_t place_of(const Slice& slice) { return reinterpret_cast<uint64_t>(slice.data()); }
  // Copies `length` bytes at `place` of `from`. Error: the memory is gone or access is denied.
  virtual Status read(Member from, uint64_t place, std::byte* to, size_t length) = 0;
  // Address at which this process has the same bytes mapped; null: not mapped. Valid until the next
  // call for the same rank, or the end of the turn.
  virtual const std::byte* map(Member /*from*/, uint64_t /*place*/, size_t /*length*/) {
    return nullptr;
  }
  virtual void wake(Member member, HostWaiter waiter) = 0;
  // Wakes every rank's waiters on every lane, this rank's too: the failure record was written, or a
  // rank left.
  virtual void wake_all() = 0;
  virtual Nanos now() = 0;
};

}  // namespace mcast
