// Resources that the groups of a process share and that a creation needs: lanes, the peers on this
// host, the job's salt, the trace.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/trace.h"
#include "runtime/aggregation.h"
#include "runtime/context.h"
#include "runtime/group_base.h"
#include "runtime/lane_pool.h"
#include "runtime/network_memory.h"
#include "runtime/rendezvous.h"
#include "shm/peer_registry.h"

namespace mcast {

// Thread-safe.
class Resources {
 public:
  // `aggregation` may be null.
  explicit Resources(EngineContext context, std::unique_ptr<Aggregation> aggregation);

  const EngineContext& context() const { return context_; }
  LanePool& lanes() { return lanes_; }
  Aggregation* aggregation() { return aggregation_.get(); }  // may be null
  NetworkMemory& networks() { return networks_; }

  // Made at the first call; lives as long as this. An error means that no memory can be shared.
  Result<PeerRegistry*> registry();
  // For PeerRegistry::find(), which is not thread-safe.
  [[nodiscard]] std::unique_lock<std::mutex> lock_registry() {
    return std::unique_lock<std::mutex>(mutex_);
  }

  // The salt that this process publishes, and the one that a group has agreed on; see JobSalt.
  std::string salt();
  void adopt_salt(const std::string& salt);

  // Made at the first call, with room for this many operations.
  std::shared_ptr<Trace> start_trace(size_t operations);
  // Null before start_trace().
  std::shared_ptr<Trace> trace() const;

  // Groups that are parts of others; they are closed after those.
  void add_part(const std::shared_ptr<GroupBase>& part);
  std::vector<std::shared_ptr<GroupBase>> parts() const;

  // Taken around a fork, so that the child never inherits a locked mutex.
  void lock();
  void unlock();
  // In the child, with the locks held: closes descriptors; no other member may be used afterwards.
  void abandon_after_fork() noexcept;
  // Ends its threads. Groups must be closed.
  void stop_registry();

 private:
  const EngineContext context_;
  LanePool lanes_;
  const std::unique_ptr<Aggregation> aggregation_;
  NetworkMemory networks_;
  mutable std::mutex mutex_;
  std::unique_ptr<PeerRegistry> registry_;  // made with the first group that may use shared memory
  JobSalt salt_{secure_random64()};
  std::shared_ptr<Trace> trace_;
  std::vector<std::weak_ptr<GroupBase>> parts_;
};

// Forgets groups that have been destroyed, and adds one.
void remember(std::vector<std::weak_ptr<GroupBase>>& groups,
              const std::shared_ptr<GroupBase>& group);
// The groups that still exist.
std::vector<std::shared_ptr<GroupBase>> living(const std::vector<std::weak_ptr<GroupBase>>& groups);

}  // namespace mcast
