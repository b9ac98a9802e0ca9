// Divides the link of an engine of the host among its jobs: a job may send a limited number of
// bytes ahead of the least served job that also wants to send; then its lanes wait. A single job
// never waits. Accounting: all bytes that a job's lanes hand to their transports, headers included,
// divided by the job's weight. A job is busy if it has wanted to send recently: within the time in
// which the link moves about as much as a job may be ahead. A job that becomes busy again is at
// most that much behind the others, however long it was idle.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/types.h"

namespace mcast {

class EgressShare;

// Thread-safe. Shares of one link: one object per engine.
class EgressShares : public std::enable_shared_from_this<EgressShares> {
 public:
  // Limit of a job's lead, in bytes times its weight.
  static constexpr uint64_t kAhead = 1u << 20;
  // Bounds of the time after which a job that does not want to send is no longer waited for.
  static constexpr Nanos kLeastPatience = 2 * kMilli, kMostPatience = 100 * kMilli;

  // Adds a client of the user. It is a separate job until it names its job. Clients of one user
  // that name the same job share its part.
  std::shared_ptr<EgressShare> add(uint32_t user, uint32_t weight);

 private:
  friend class EgressShare;
  struct Job {
    explicit Job(uint32_t w) : weight(w) {}
    const uint32_t weight;
    // In units of kAhead: bytes divided by weight, times kScale. `limit`: the last computed limit
    // of `served`.
    std::atomic<uint64_t> served{0}, limit{0};
    std::atomic<Nanos> wanted{kNever};  // last time; kNever: never
    uint32_t clients = 1;               // guarded by mutex_ of the shares
  };
  static constexpr uint64_t kScale = 64;
  static constexpr uint64_t kAheadServed = kAhead * kScale;

  bool alone() const { return jobs_count_.load(std::memory_order_relaxed) < 2; }
  void enter(Job& job, Nanos now);
  bool may(Job& job, Nanos now);
  void leave(const std::shared_ptr<Job>& job);  // mutex_ held
  uint64_t least(Nanos now, const Job& but);    // mutex_ held
  bool busy(const Job& job, Nanos now) const;   // mutex_ held
  void watch_rate(Nanos now);                   // mutex_ held

  std::atomic<size_t> jobs_count_{0};
  std::atomic<uint64_t> sent_{0};  // bytes, of all jobs
  std::mutex mutex_;               // guards the members below
  std::map<std::string, std::shared_ptr<Job>> jobs_;
  uint64_t anonymous_ = 0;  // number of jobs without a name so far
  uint64_t reached_ = 0;    // `served` of the least served busy job; never decreases
  Nanos patience_ = kMostPatience;
  uint64_t mark_ = 0;  // value of sent_ at mark_at_
  Nanos mark_at_ = kNever;
};

// One client's part. Its lanes may call it concurrently; join(): any thread.
class EgressShare {
 public:
  EgressShare(std::shared_ptr<EgressShares> shares, uint32_t user, uint32_t weight,
              const std::string& name);
  ~EgressShare();
  EgressShare(const EgressShare&) = delete;
  EgressShare& operator=(const EgressShare&) = delete;

  // Sets the job that the client belongs to, once it is known. Bytes served so far stay with the
  // old job.
  void join(const std::string& job);
  // Whether the job may send now. The call marks the job as wanting to send.
  bool may_send(Nanos now);
  void sent(size_t bytes);
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Number of may_send() calls that returned false.
  uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }

 private:
  EgressShares::Job& job() const { return *current_.load(std::memory_order_acquire); }

  const std::shared_ptr<EgressShares> shares_;
  const uint32_t user_, weight_;
  std::atomic<uint64_t> bytes_{0}, waits_{0};
  std::atomic<EgressShares::Job*> current_;
  std::string name_;                                 // of the job; guarded by the shares' mutex
  std::shared_ptr<EgressShares::Job> first_, last_;  // both are kept: a lane may be reading
};

}  // namespace mcast
