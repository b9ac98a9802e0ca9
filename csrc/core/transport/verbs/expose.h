// What peers may read of this process's memory: pieces of blocks, registered while a grant of them
// lives and not beyond a limit of pinned bytes. Lane thread only; grants are dropped on it too.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/gather.h"
#include "transport/verbs/memory.h"

namespace mcast::verbs {

// Pinned bytes of one lane, at most; beyond it repairs go by messages. Of a limit of locked memory,
// a quarter of that if it is less.
inline constexpr size_t kMostExposed = 256u << 20;

class Exposures {
 public:
  // `largest`: bytes of a datagram, which may begin in one piece and end in the next.
  Exposures(Api& api, ibv_pd* pd, RegionCache& cache, size_t largest);
  Result<RemoteGrant> expose(const Slice& block, size_t offset);
  size_t bytes() const noexcept { return *bytes_; }
  void abandon() noexcept;

 private:
  struct Pinned;  // what a grant holds
  struct Entry {
    std::weak_ptr<Region> region;
    size_t first, end;  // in the region
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
