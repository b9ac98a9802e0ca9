// The registrar of a process: a thread of its own, from the first group on, with real connections,
// and one that looks up names.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/admission_link.h"
#include "engine/name_lookup.h"
#include "engine/registrar_core.h"

namespace mcast {

class RegistrarThread final : public Registrar {
 public:
  // `resolve`: where hosts are; may take its time.
  explicit RegistrarThread(NameLookup::Resolve resolve = mcast::resolve);
  ~RegistrarThread() override;
  RegistrarThread(const RegistrarThread&) = delete;
  RegistrarThread& operator=(const RegistrarThread&) = delete;

  // Throws where no thread can be had.
  Status enter(uint64_t group, Job job) override;
  void settled(uint64_t group, const std::vector<uint64_t>& uids) override;
  void lost(uint64_t group, uint64_t uid, const std::string& why) override;
  void parted(uint64_t group, uint64_t uid) override;
  std::vector<AggregatorStats> stats(uint64_t group) const override;
  void leave(uint64_t group) override;
  // Tells all aggregators, ends the thread. Idempotent; nothing may be entered afterwards.
  void stop();

  // Around a fork, so that a child never inherits the lock held.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // In the child, locked: closes descriptors; nothing else of this may be used.
  void abandon_after_fork() noexcept;

 private:
  void loop();
  void look_up_due();
  // With `held` of mutex_, of which it lets go meanwhile.
  void wait(std::unique_lock<std::mutex>& held);
  void wake() const;

  mutable std::mutex mutex_;
  RegistrarCore core_;
  std::map<std::pair<uint64_t, size_t>, std::vector<SocketAddress>> resolved_;
  bool stopping_ = false;
  int wake_ = -1;  // eventfd
  NameLookup names_;
  std::thread thread_;
};

}  // namespace mcast
