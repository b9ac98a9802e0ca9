// The registrar of a process: a thread with real connections, started with the first group, and
// another one that resolves names.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "aggregation/member/admission_link.h"
#include "aggregation/member/name_lookup.h"
#include "aggregation/member/registrar_core.h"

namespace mcast {

class RegistrarThread final : public Registrar {
 public:
  // `resolve` returns the addresses of a host; may block.
  explicit RegistrarThread(NameLookup::Resolve resolve = mcast::resolve);
  ~RegistrarThread() override;
  RegistrarThread(const RegistrarThread&) = delete;
  RegistrarThread& operator=(const RegistrarThread&) = delete;

  // Throws if no thread is available.
  Status enter(uint64_t group, Job job) override;
  void settled(uint64_t group, const std::vector<uint64_t>& uids) override;
  void lost(uint64_t group, uint64_t uid, const std::string& why) override;
  void parted(uint64_t group, uint64_t uid) override;
  std::vector<AggregatorStats> stats(uint64_t group) const override;
  void leave(uint64_t group) override;
  // Informs all aggregators and ends the thread. Idempotent; no enter() afterwards.
  void stop();

  // Taken around a fork, so that the child never inherits a locked mutex.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // In the child, with the lock held: closes descriptors; no other member may be used afterwards.
  void abandon_after_fork() noexcept;

 private:
  void loop();
  void look_up_due();
  // `held` locks mutex_, and is unlocked while waiting.
  void wait(std::unique_lock<std::mutex>& held);
  void wake() const;

  mutable std::mutex mutex_;
  RegistrarCore core_;
  std::map<std::pair<uint64_t, size_t>, std::vector<Endpoint>> resolved_;
  bool stopping_ = false;
  int wake_ = -1;  // eventfd
  NameLookup names_;
  std::thread thread_;
};

}  // namespace mcast
