// GroupSource: another place than this process where groups can be made: an optional product
// (products.h). GroupMaker asks it first.
//
// Threads: all calls: any thread.
#pragma once

#include <memory>

#include "base/status.h"
#include "base/trace.h"
#include "runtime/group.h"
#include "runtime/group_base.h"

namespace mcast {

class GroupSource {
 public:
  virtual ~GroupSource() = default;
  // Null: the group is to be made in this process. An error if the settings ask for another place
  // and there is none; the other ranks have been informed then. `trace` may be null.
  virtual Result<std::shared_ptr<GroupBase>> make(const GroupSpec& spec, KeyValueStore& store,
                                                  const std::shared_ptr<Trace>& trace) = 0;
  // make() fails afterwards. The groups need the result until they are closed.
  virtual std::shared_ptr<void> shutdown() = 0;

  // Taken around a fork, so that the child never inherits a locked mutex.
  virtual void lock() = 0;
  virtual void unlock() = 0;
  // In the child, with the lock held: closes descriptors; no other member may be used afterwards.
  virtual void abandon_after_fork() noexcept = 0;
};

}  // namespace mcast
