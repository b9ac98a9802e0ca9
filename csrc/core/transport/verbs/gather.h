// Finds or makes the registrations for payloads of gathered datagrams. Lane thread only.
//
// A registration pins its pages, which takes 14 us per MiB (0.6 with huge pages), measured on the
// development machine, and some tens of microseconds at the device. The copy that it saves takes 35
// us per MiB, for memory that is in no cache. Hence only large blocks are gathered, in large
// pieces, each registered when sending reaches it: the first datagram does not wait for the whole
// block, and the lane never waits long.
#pragma once

#include <memory>

#include "transport/verbs/memory.h"
#include "transport/verbs/options.h"

namespace mcast::verbs {

inline constexpr size_t kGatherFrom = 4u << 20;    // minimum size of a block, bytes
inline constexpr size_t kGatherPiece = 16u << 20;  // size of a registration, bytes

// Objects that the device may still need for one datagram: the memory, and its registration. The
// region itself is not held, because its lifetime tells the cache that the addresses still refer to
// the same memory.
struct Gathered {
  std::shared_ptr<Registration> registration;
  std::shared_ptr<void> memory;
};

class GatherSource {
 public:
  // If locked memory is limited, it takes a quarter of that limit: rings and connections need the
  // rest.
  GatherSource(RegionCache& cache, size_t largest, size_t lock_limit, UdStats& stats)
      : cache_(cache),
        largest_(largest),
        most_(lock_limit == SIZE_MAX ? SIZE_MAX : lock_limit / 4),
        stats_(stats) {}

  // Returns the registration of `length` bytes of `block` from `offset` on, at most `largest`; null
  // if they are not within it, or registering was refused.
  const std::shared_ptr<Registration>& find(const Slice& block, size_t offset, size_t length);
  // Ends registrations of memory that is gone, except those that a Gathered holds.
  void drop_dead();
  void abandon() noexcept {
    if (registration_) registration_->abandon();
  }

 private:
  Result<std::shared_ptr<Registration>> register_part(const std::shared_ptr<Region>& region,
                                                      size_t first, size_t end);

  RegionCache& cache_;
  const size_t largest_, most_;
  UdStats& stats_;
  // The last result, usually also the next: datagrams are sent in order.
  std::weak_ptr<Region> region_;
  size_t first_ = 0;  // offset in the region
  size_t end_ = 0;
  std::shared_ptr<Registration> registration_;  // null: refused
};

}  // namespace mcast::verbs
