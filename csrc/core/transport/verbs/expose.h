// The parts of this process's memory that peers may read: pieces of blocks, registered while a
// grant of them lives, up to a limit of pinned bytes. Lane thread only; grants are released on it
// too.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/gather.h"
#include "transport/verbs/memory.h"

namespace mcast::verbs {

// Maximum number of pinned bytes of one lane; beyond it, repairs are sent as messages. If locked
// memory is limited, a quarter of that limit if it is less.
inline constexpr size_t kMostExposed = 256u << 20;

class Exposures {
 public:
  // `largest`: bytes of a datagram, which may begin in one piece and end in the next.
  Exposures(Api& api, ibv_pd* pd, RegionCache& cache, size_t largest);
  Result<RemoteGrant> expose(const Slice& block, size_t offset);
  size_t bytes() const noexcept { return *bytes_; }
  void abandon() noexcept;

 private:
  struct Pinned;  // the part of the state that a grant holds
  struct Entry {
    std::weak_ptr<Region> region;
    size_t first, end;  // offsets in the region
    std::weak_ptr<Pinned> pinned;
  };

  Api& api_;
  ibv_pd* pd_;
  RegionCache& cache_;
  const size_t largest_, most_;
  std::shared_ptr<size_t> bytes_ = std::make_shared<size_t>(0);
  std::vector<Entry> entries_;
};

}  // namespace mcast::verbs
