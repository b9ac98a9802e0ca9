// The lanes of this process: made at first use and kept, so that groups are cheap.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "crypto/secret.h"
#include "engine/context.h"
#include "engine/lane_thread.h"
#include "transport/registry.h"

namespace mcast {

// Thread-safe. Making lanes opens sockets and starts threads; it may throw where a thread cannot be
// had.
class LanePool {
 public:
  explicit LanePool(const EngineContext& context = {}) : context_(context) {}

  // Of these settings, over this transport. `number`: of the multicast lane, for groups that want
  // one of their own; 0: everybody's. `secret`: of guarded ones, which are of one secret; null:
  // they are none.
  // kClosed after close().
  Result<Lanes> lanes_for(const Config& config, const TransportType& type, uint32_t number,
                          const crypto::JobSecret* secret = nullptr);
  // Ends those of them that no group uses; a later lanes_for() makes them again.
  void retire(Lanes lanes);
  // Empty, or why the transport does not work here. Asked once per set of settings.
  std::string problem_of(const TransportType& type, const Config& config);
  // What all multicast lanes together have received, bytes: they share the link.
  std::shared_ptr<const std::atomic<uint64_t>> arrived() const { return arrived_; }

  // No more lanes; those that there are, poisoned ones too, which the caller stops.
  std::vector<std::shared_ptr<LaneThread>> close();

  // Around a fork, so that a child never inherits the lock held.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // In the child, locked: closes descriptors; nothing else of the pool may be used.
  void abandon_after_fork() noexcept;

 private:
  // `mutex_` held.
  Result<std::shared_ptr<LaneThread>> lane_for(const Config& config, LaneId id,
                                               const TransportType& type, uint32_t number,
                                               const crypto::JobSecret* secret);
  void sweep_poisoned();

  const EngineContext context_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<LaneThread>> lanes_;  // by their settings
  // Replaced in `lanes_`; groups may still use them.
  std::vector<std::shared_ptr<LaneThread>> poisoned_;
  std::map<std::string, std::string> problems_;  // of transports, by transport and settings
  std::shared_ptr<std::atomic<uint64_t>> arrived_ = std::make_shared<std::atomic<uint64_t>>(0);
  bool closed_ = false;
};

}  // namespace mcast
