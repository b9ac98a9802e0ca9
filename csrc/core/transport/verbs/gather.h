// Where the payloads of gathered datagrams are registered. Lane thread only.
//
// Only parts of large operations are gathered: a registration costs some tens of microseconds at
// the device and, measured here, 20 us per MiB for pinning pages of 4 KiB (1 us with huge pages);
// the copy that it saves costs 100 to 200 us per MiB of memory that is not in the cache. A region
// is registered in pieces, when sending gets there: it is a whole storage, of which an operation
// may send a small part, and pinning all of it at once would keep the lane from its work.
#pragma once

#include <memory>

#include "transport/verbs/memory.h"
#include "transport/verbs/options.h"

namespace mcast::verbs {

inline constexpr size_t kGatherFrom = 1u << 20;   // bytes of a block
inline constexpr size_t kGatherPiece = 4u << 20;  // bytes of a registration

// What the device may still read for one datagram: the memory, and leave to read it. Not the region
// itself, whose life tells the cache that the addresses mean what they meant.
struct Gathered {
  std::shared_ptr<Registration> registration;
  std::shared_ptr<void> memory;
};

class GatherSource {
 public:
  GatherSource(RegionCache& cache, size_t largest, VerbsStats& stats)
      : cache_(cache), largest_(largest), stats_(stats) {}

  // The registration of `length` bytes of `region` from `offset` on, at most `largest`; null: the
  // range is not within the region, or registering was refused.
  const std::shared_ptr<Registration>& find(const std::shared_ptr<Region>& region, size_t offset,
                                            size_t length);
  // Registrations of what is gone end, except where Gathered holds them.
  void drop_dead();
  void abandon() noexcept {
    if (registration_) registration_->abandon();
  }

 private:
  RegionCache& cache_;
  const size_t largest_;
  VerbsStats& stats_;
  // The last answer, usually also the next: datagrams leave in order.
  std::weak_ptr<Region> region_;
  size_t piece_ = 0;
  std::shared_ptr<Registration> registration_;  // null: refused
};

}  // namespace mcast::verbs
