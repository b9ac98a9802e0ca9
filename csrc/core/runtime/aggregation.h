// In-network aggregation, as the runtime sees it: an optional product (products.h) that folds parts
// of reductions outside of the ranks. One Aggregation per GroupMaker, one GroupFold per group.
//
// Threads: all calls: any thread, unless stated. No call waits for an aggregator.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collective/external_fold.h"
#include "crypto/secret.h"
#include "runtime/group.h"
#include "runtime/lane_driver.h"
#include "runtime/rendezvous.h"

namespace mcast {

class GroupCore;

// One group's dealings with aggregators.
class GroupFold {
 public:
  virtual ~GroupFold() = default;
  // The group has been added to the reduce lane, and no frame has arrived yet. In the lane's
  // context.
  virtual void opened(GroupCore& core) = 0;
  // The path of the group is known: rank 0 asks the aggregators. `first` runs once, when the first
  // stations are in force (at once if they are), in the reduce lane's context or in this call.
  virtual void begin(const Agreement& agreement, std::function<void()> first) = 0;
  // The group has failed or is closed. Idempotent.
  virtual void leave() = 0;
  virtual std::vector<AggregatorStats> stats() const = 0;
};

class Aggregation {
 public:
  virtual ~Aggregation() = default;
  // Of every group, whether it has aggregators or not: shows what the planner would do.
  virtual ExternalFoldMaker fold() const = 0;
  // For a group that has aggregators. `reduce`: its lane. `secret`: of a guarded group; else null.
  // `hosts_fold`: ranks of a host fold their inputs first. Throws if no thread is available.
  virtual std::shared_ptr<GroupFold> join(const GroupSpec& spec, const Agreement& agreement,
                                          const std::shared_ptr<LaneDriver>& reduce,
                                          std::shared_ptr<const crypto::JobSecret> secret,
                                          bool hosts_fold) = 0;
  // Informs all aggregators. Idempotent; no join() afterwards.
  virtual void stop() = 0;

  // Taken around a fork, so that the child never inherits a locked mutex.
  virtual void lock() = 0;
  virtual void unlock() = 0;
  // In the child, with the lock held: closes descriptors; no other member may be used afterwards.
  virtual void abandon_after_fork() noexcept = 0;
};

}  // namespace mcast
