// Memory registered with a device: buffers of the transport's own, and a cache for the memory of
// operations. Lane thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/region.h"
#include "base/status.h"
#include "transport/verbs/api.h"

namespace mcast::verbs {

// One registration, ended with the object.
class Registration {
 public:
  Registration(Api& api, ibv_mr* mr) : api_(api), mr_(mr) {}
  ~Registration() {
    if (mr_ != nullptr) (void)api_.dereg_mr(mr_);
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  uint32_t lkey() const noexcept { return mr_->lkey; }
  uint32_t rkey() const noexcept { return mr_->rkey; }
  // In the child of a fork: it is the parent's to end.
  void abandon() noexcept { mr_ = nullptr; }

 private:
  Api& api_;
  ibv_mr* mr_;
};

// kResourceExhausted with the memlock limit and how to raise it, where that is the reason.
Result<std::shared_ptr<Registration>> register_memory(Api& api, ibv_pd* pd, void* data, size_t size,
                                                      int access);

// Page-aligned memory of our own, registered for local use.
class Buffer {
 public:
  ~Buffer();
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Status open(Api& api, ibv_pd* pd, size_t size);
  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  uint32_t lkey() const noexcept { return registration_->lkey(); }
  // In the child of a fork, which may have other pages at this address already.
  void abandon() noexcept {
    abandoned_ = true;
    if (registration_) registration_->abandon();
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<Registration> registration_;
  bool abandoned_ = false;
};

// Registrations of parts of regions that datagrams are gathered from, and that peers may be let
// read (expose.h), keyed by address range and by the allocation. A region keeps its allocation
// alive, so as long as any region over a range lives, the range means the same memory and its
// registration is shared. With the last of them the entry dies: the same addresses may be other
// pages the next time (freed and mapped again, a tensor's storage resized), and no hook of ours
// would see it. A registration that was handed out lives on until its user drops it, which is
// harmless: the device has the pages pinned, whatever the addresses mean now.
class RegionCache {
 public:
  RegionCache(Api& api, ibv_pd* pd) : api_(api), pd_(pd) {}

  // Of the whole region, or of a part of it.
  Result<std::shared_ptr<Registration>> get(const std::shared_ptr<Region>& region) {
    return get(region, 0, region->size());
  }
  Result<std::shared_ptr<Registration>> get(const std::shared_ptr<Region>& region, size_t offset,
                                            size_t length);
  // The same if it is registered already, else null.
  std::shared_ptr<Registration> find(const std::shared_ptr<Region>& region, size_t offset,
                                     size_t length) const;
  // Forgets what no region is left of; get() does.
  void drop_dead();
  void abandon() noexcept;
  size_t size() const noexcept { return entries_.size(); }
  size_t bytes() const noexcept;  // as the entries say: what two share counts twice
  uint64_t hits() const noexcept { return hits_; }

 private:
  struct Entry {
    std::weak_ptr<Region> allocation;
    std::shared_ptr<Registration> registration;
  };

  Api& api_;
  ibv_pd* pd_;
  std::multimap<std::pair<const std::byte*, size_t>, Entry> entries_;
  uint64_t hits_ = 0;
};

}  // namespace mcast::verbs
