// Registrar: asks aggregators to fold for groups of which this process is rank 0, holds the
// connections that admissions last as long as, and asks those again that are absent. One for all
// groups of a process. What is admitted it offers to the group, which agrees on it
// (collective/roster_change.h) and tells what becomes of the stations.
//
// Threads: a thread of its own, from the first group on. All calls: any thread, also a lane's; none
// waits for an aggregator or for a name server.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/net_address.h"
#include "engine/admission.h"
#include "engine/admission_link.h"

namespace mcast {

class Registrar {
 public:
  struct Job {
    std::vector<NetAddress> aggregators;  // one at least
    wire::Ask ask;                        // its roster version and rack are filled in
    // All stations that are admitted now, in the order of the aggregators: once those have
    // answered, or after kGather; then whenever they have changed. On the registrar's thread; must
    // not block, nor call the registrar.
    std::function<void(std::vector<wire::StationEntry>)> offer;
  };
  // For all aggregators to answer before the first offer.
  static constexpr Nanos kGather = kSecond;

  Registrar() = default;
  ~Registrar();
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

  // `group`: its tag, as for the calls below. Not ok: nobody is asked. Throws where no thread can
  // be had.
  Status enter(uint64_t group, Job job);
  // As RosterEvents. After leave(): nothing happens.
  void settled(uint64_t group, const std::vector<uint64_t>& uids);
  void lost(uint64_t group, uint64_t uid, const std::string& why);
  void parted(uint64_t group, uint64_t uid);
  std::vector<AggregatorStats> stats(uint64_t group) const;
  // The group is closed: aggregators are told soon.
  void leave(uint64_t group);
  // Tells all aggregators, ends the thread. Idempotent; nothing may be entered afterwards.
  void stop();

  // Around a fork, so that a child never inherits the lock held.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // In the child, locked: closes descriptors; nothing else of this may be used.
  void abandon_after_fork() noexcept;

 private:
  struct Row {
    explicit Row(const NetAddress& address) : admission(address) {}
    Admission admission;
    std::unique_ptr<AdmissionLink> link;
    std::vector<SocketAddress> resolved;
    std::string noted;  // in the log
  };
  struct Entry {
    Job job;
    Nanos gather_until = 0;
    bool left = false;
    bool offered = false;
    std::vector<uint64_t> last_offer;  // uids
    uint32_t version = 0;              // rosters offered
    std::vector<Row> rows;
  };

  void loop();
  // With `held` of mutex_; resolve_due() lets go of it meanwhile.
  void resolve_due(std::unique_lock<std::mutex>& held);
  void turn(Nanos now);
  void ask(Entry& entry, Row& row, Nanos now);
  void tidy(Entry& entry, Nanos now);
  void offer(Entry& entry, Nanos now);
  void serve(Entry& entry, Row& row, short ready, Nanos now);
  void on_record(Entry& entry, Row& row, wire::Admission record, Nanos now);
  void on_end(Entry& entry, Row& row, const Status& why, Nanos now);
  void note(const Entry& entry, Row& row) const;
  std::vector<uint64_t> taken(const Entry& entry) const;
  Nanos next_due() const;
  void wake() const;

  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> jobs_;  // by group
  bool stopping_ = false;
  int wake_ = -1;  // eventfd
  std::thread thread_;
};

}  // namespace mcast
