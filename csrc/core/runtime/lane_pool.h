// The lanes of this process: made at first use and kept, so that groups are cheap.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "crypto/secret.h"
#include "runtime/context.h"
#include "runtime/lane_thread.h"
#include "transport/registry.h"

namespace mcast {

// Thread-safe. Making lanes opens sockets and starts threads; it may throw if no thread is
// available.
class LanePool {
 public:
  explicit LanePool(const EngineContext& context = {}) : context_(context) {}

  // Lanes with these settings, over this transport. `number`: of the multicast lane, for groups
  // that need a separate one; 0: the shared one. `secret`: of guarded lanes, which serve one secret
  // only; null: not guarded. kClosed after close().
  Result<Lanes> lanes_for(const Config& config, const TransportType& type, uint32_t number,
                          const crypto::JobSecret* secret = nullptr);
  // Ends the lanes that no group uses; a later lanes_for() makes them again.
  void retire(Lanes lanes);
  // Why the transport does not work here; empty if it does. Determined once per set of settings.
  std::string problem_of(const TransportType& type, const Config& config);
  // Bytes that all multicast lanes together have received: they share the link.
  std::shared_ptr<const std::atomic<uint64_t>> arrived() const { return arrived_; }

  // Makes no more lanes. Returns the existing ones, including poisoned ones; the caller stops them.
  std::vector<std::shared_ptr<LaneThread>> close();

  // Taken around a fork, so that the child never inherits a locked mutex.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // In the child, with the lock held: closes descriptors; no other member may be used afterwards.
  void abandon_after_fork() noexcept;

 private:
  // Called with `mutex_` held.
  Result<std::shared_ptr<LaneThread>> lane_for(const Config& config, LaneId id,
                                               const TransportType& type, uint32_t number,
                                               const crypto::JobSecret* secret);
  void sweep_poisoned();

  const EngineContext context_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<LaneThread>> lanes_;  // by their settings
  // No longer in `lanes_`; groups may still use them.
  std::vector<std::shared_ptr<LaneThread>> poisoned_;
  std::map<std::string, std::string> problems_;  // by transport and settings
  std::shared_ptr<std::atomic<uint64_t>> arrived_ = std::make_shared<std::atomic<uint64_t>>(0);
  bool closed_ = false;
};

}  // namespace mcast
