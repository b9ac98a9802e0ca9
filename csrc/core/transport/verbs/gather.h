// Where the payloads of gathered datagrams are registered. Lane thread only.
//
// A registration costs the pinning of its pages, measured on the development machine 14 us per MiB
// (0.6 with huge pages), and some tens of microseconds at the device; the copy that it saves, of
// memory that is in no cache, 35 us per MiB. Hence only large blocks, in large pieces, each
// registered when sending gets there: the first datagram does not wait for all of the block, and
// the lane never for long.
#pragma once

#include <memory>

#include "transport/verbs/memory.h"
#include "transport/verbs/options.h"

namespace mcast::verbs {

inline constexpr size_t kGatherFrom = 4u << 20;    // bytes of a block
inline constexpr size_t kGatherPiece = 16u << 20;  // bytes of a registration

// What the device may still read for one datagram: the memory, and leave to read it. Not the region
// itself, whose life tells the cache that the addresses mean what they meant.
struct Gathered {
  std::shared_ptr<Registration> registration;
  std::shared_ptr<void> memory;
};

class GatherSource {
 public:
  // Of a limit of locked memory it takes a quarter: rings and connections cannot do without.
  GatherSource(RegionCache& cache, size_t largest, size_t lock_limit, UdStats& stats)
      : cache_(cache),
        largest_(largest),
        most_(lock_limit == SIZE_MAX ? SIZE_MAX : lock_limit / 4),
        stats_(stats) {}

  // The registration of `length` bytes of `block` from `offset` on, at most `largest`; null: they
  // are not within it, or registering was refused.
  const std::shared_ptr<Registration>& find(const Slice& block, size_t offset, size_t length);
  // Registrations of what is gone end, except where Gathered holds them.
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
  // The last answer, usually also the next: datagrams leave in order.
  std::weak_ptr<Region> region_;
  size_t first_ = 0;  // in the region
  size_t end_ = 0;
  std::shared_ptr<Registration> registration_;  // null: refused
};

}  // namespace mcast::verbs
