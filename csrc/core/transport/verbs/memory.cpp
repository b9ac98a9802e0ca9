// Registers memory, explains the most common failure with its remedy, and has the cache. A look-up
// first drops the entries whose allocation is gone. The cache has an entry per piece that
// operations in flight have sent, and is searched once per piece, so scans cost little.
#include "transport/verbs/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

namespace mcast::verbs {

Result<std::shared_ptr<Registration>> register_memory(Api& api, ibv_pd* pd, void* data, size_t size,
                                                      int access) {
  errno = 0;
  ibv_mr* const mr = api.reg_mr(pd, data, size, access);
  if (mr != nullptr) return std::make_shared<Registration>(api, mr);
  const int error = errno;
  std::string what = "registering " + std::to_string(size) + " bytes with the RDMA device";
  if (error == ENOMEM || error == EAGAIN || error == EPERM) {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY) {
      return Status(Code::kResourceExhausted,
                    what + ": " + std::strerror(error) + "; the memory lock limit is " +
                        std::to_string(limit.rlim_cur) +
                        " bytes: raise it (ulimit -l unlimited; LimitMEMLOCK=infinity; docker run "
                        "--ulimit memlock=-1), or lower MCAST_RCVBUF");
    }
  }
  return Status::system(error, what);
}

Buffer::~Buffer() {
  // Release the device's registration before the pages.
  registration_.reset();
  if (data_ != nullptr && !abandoned_) ::munmap(data_, size_);
}

Status Buffer::open(Api& api, ibv_pd* pd, size_t size) {
  void* const at =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Status::system(errno, "mmap of a send or receive ring");
  auto made = register_memory(api, pd, at, size, IBV_ACCESS_LOCAL_WRITE);
  if (!made.ok()) {
    ::munmap(at, size);
    return made.status();
  }
  data_ = static_cast<std::byte*>(at);
  size_ = size;
  registration_ = std::move(made).value();
  return {};
}

void RegionCache::drop_dead() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = it->second.allocation.expired() ? entries_.erase(it) : std::next(it);
  }
}

size_t RegionCache::bytes() const noexcept {
  size_t sum = 0;
  for (const auto& [range, entry] : entries_) sum += range.second;
  return sum;
}

void RegionCache::abandon() noexcept {
  for (auto& [range, entry] : entries_) entry.registration->abandon();
}

std::shared_ptr<Registration> RegionCache::find(const std::shared_ptr<Region>& region,
                                                size_t offset, size_t length) const {
  const auto range = entries_.equal_range({region->data() + offset, length});
  for (auto at = range.first; at != range.second; ++at) {
    if (at->second.allocation.lock() == region) return at->second.registration;
  }
  return nullptr;
}

Result<std::shared_ptr<Registration>> RegionCache::get(const std::shared_ptr<Region>& region,
                                                       size_t offset, size_t length) {
  drop_dead();
  const std::pair<const std::byte*, size_t> key{region->data() + offset, length};
  if (const auto it = entries_.find(key); it != entries_.end()) {
    ++hits_;
    // From now on the lifetime of this region counts too.
    for (auto [at, end] = entries_.equal_range(key); at != end; ++at) {
      if (at->second.allocation.lock() == region) return at->second.registration;
    }
    auto shared = it->second.registration;
    entries_.emplace(key, Entry{region, shared});
    return shared;
  }
  auto made = register_memory(api_, pd_, region->data() + offset, length,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  if (made.ok()) entries_.emplace(key, Entry{region, *made});
  return made;
}

}  // namespace mcast::verbs
