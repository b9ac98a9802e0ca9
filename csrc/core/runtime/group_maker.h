// Creates groups and owns their shared resources: for this process, or, in an engine of the host,
// for one client.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/trace.h"
#include "runtime/group.h"
#include "runtime/group_base.h"
#include "runtime/products.h"
#include "runtime/resources.h"

namespace mcast {

// Thread-safe. Its destruction ends threads: groups must be gone, and shutdown() called.
class GroupMaker {
 public:
  // With the products of this build.
  explicit GroupMaker(EngineContext context = {});
  explicit GroupMaker(Products products, EngineContext context = {});
  const EngineContext& context() const { return resources_.context(); }

  // Blocks until all ranks have called it, multicast has been probed and the path is agreed.
  Result<std::shared_ptr<GroupBase>> create_group(const GroupSpec& spec, KeyValueStore& store);

  // Waits until the ends of all groups are confirmed (Group::close_in_order()) and stops the lanes.
  // `give_up`: closes as Group::give_up() does; otherwise nothing is aborted. create_group()
  // returns kClosed afterwards. `hurry`: as in close_in_order(); called unless give_up.
  void shutdown(bool give_up, const std::function<bool()>& hurry = {});

  std::vector<std::shared_ptr<Group>> groups() const;
  std::vector<TraceEvent> trace() const;

  // Taken around a fork, so that the child never inherits a locked mutex.
  void lock();
  void unlock();
  // In the child, with the locks held: closes descriptors; no other member may be used afterwards.
  void abandon_after_fork() noexcept;

 private:
  Status check_products(const Config& config);
  Result<std::shared_ptr<GroupBase>> make(const GroupSpec& spec, KeyValueStore& store);
  Result<std::shared_ptr<GroupBase>> make_guarded(const GroupSpec& spec, KeyValueStore& store);

  Resources resources_;
  const std::unique_ptr<GroupSource> source_;  // may be null
  mutable std::mutex mutex_;                   // guards the members below
  std::vector<std::weak_ptr<GroupBase>> groups_;
  bool down_ = false;
};

}  // namespace mcast
