// Memory registered with a device: the transport's own buffers, and a cache for the memory of
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

// One registration; its destructor deregisters the memory.
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
  // For the child of a fork: only the parent may deregister it.
  void abandon() noexcept { mr_ = nullptr; }

 private:
  Api& api_;
  ibv_mr* mr_;
};

// kResourceExhausted if the memlock limit is the reason; the error has the limit and how to raise
// it.
Result<std::shared_ptr<Registration>> register_memory(Api& api, ibv_pd* pd, void* data, size_t size,
                                                      int access);

// Page-aligned memory of the transport, registered for local use.
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
  // For the child of a fork, which may already have other pages at this address.
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

// Registrations of parts of regions that datagrams are gathered from, or that peers may be allowed
// to read (expose.h), keyed by address range and by the allocation. A region keeps its allocation
// alive, so as long as any region over a range lives, the range refers to the same memory and its
// registration is shared. The entry is dropped with the last of these regions: later the same
// addresses may be other pages (freed and mapped again, a tensor's storage resized), and no hook of
// this process would notice. A registration that was handed out lives until its user drops it. This
// is harmless: the device has the pages pinned, whatever the addresses refer to now.
class RegionCache {
 public:
  RegionCache(Api& api, ibv_pd* pd) : api_(api), pd_(pd) {}

  // Registers the whole region, or a part of it.
  Result<std::shared_ptr<Registration>> get(const std::shared_ptr<Region>& region) {
    return get(region, 0, region->size());
  }
  Result<std::shared_ptr<Registration>> get(const std::shared_ptr<Region>& region, size_t offset,
                                            size_t length);
  // The same if it is registered already, otherwise null.
  std::shared_ptr<Registration> find(const std::shared_ptr<Region>& region, size_t offset,
                                     size_t length) const;
  // Drops entries of which no region is left; get() does it too.
  void drop_dead();
  void abandon() noexcept;
  size_t size() const noexcept { return entries_.size(); }
  size_t bytes() const noexcept;  // sum over entries: memory that two of them share counts twice
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
