// A piece that is being gathered for datagrams is registered already, in the same bounds, and its
// registration is shared. A piece is identified by its region, not its addresses, which may later
// refer to other memory.
#include "transport/verbs/expose.h"

#include <algorithm>
#include <utility>

namespace mcast::verbs {

struct Exposures::Pinned {
  Pinned(std::shared_ptr<Registration> r, size_t s, std::shared_ptr<size_t> all)
      : registration(std::move(r)), size(s), bytes(std::move(all)) {
    *bytes += size;
  }
  ~Pinned() { *bytes -= size; }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  std::shared_ptr<Registration> registration;
  size_t size;
  std::shared_ptr<size_t> bytes;  // grants may outlive the endpoint
};

Exposures::Exposures(Api& api, ibv_pd* pd, RegionCache& cache, size_t largest)
    : api_(api),
      pd_(pd),
      cache_(cache),
      largest_(largest),
      most_(std::min(kMostExposed, api.lock_limit() / 4)) {}

Result<RemoteGrant> Exposures::expose(const Slice& block, size_t offset) {
  const size_t first = offset / kGatherPiece * kGatherPiece;
  const size_t size = std::min(kGatherPiece + largest_, block.length - first);
  const size_t at = block.offset + first;
  std::erase_if(entries_, [](const Entry& e) { return e.pinned.expired(); });
  std::shared_ptr<Pinned> pinned;
  for (const Entry& e : entries_) {
    if (e.first == at && e.end == at + size && e.region.lock() == block.region) {
      pinned = e.pinned.lock();
    }
  }
  if (!pinned) {
    if (size > most_ || *bytes_ > most_ - size) {
      return Status(Code::kResourceExhausted, "peers may already read " + std::to_string(*bytes_) +
                                                  " of at most " + std::to_string(most_) +
                                                  " bytes");
    }
    auto registration = cache_.find(block.region, at, size);
    if (!registration) {
      auto made = register_memory(api_, pd_, block.region->data() + at, size,
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
      if (!made.ok()) return made.status();
      registration = std::move(made).value();
    }
    pinned = std::make_shared<Pinned>(std::move(registration), size, bytes_);
    entries_.push_back({block.region, at, at + size, pinned});
  }
  return RemoteGrant{reinterpret_cast<uint64_t>(block.data()), first, first + size,
                     pinned->registration->rkey(), pinned};
}

void Exposures::abandon() noexcept {
  for (const Entry& e : entries_) {
    if (const auto pinned = e.pinned.lock()) pinned->registration->abandon();
  }
}

}  // namespace mcast::verbs
