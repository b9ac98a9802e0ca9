// How the jobs of an engine of the host divide its link: a job may send so far ahead of the least
// served one that wants to send as well, then its lanes wait. With one job nothing is held.
//
// Who is counted. All bytes that a job's lanes hand to their transports, headers included, divided
// by its weight. A job is busy as long as it has wanted to send lately: within the time in which
// the link moves about as much as a job may be ahead. One that comes back is at most that much
// behind the others, however long it was idle.
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

// Thread-safe. Of one link: one per engine.
class EgressShares : public std::enable_shared_from_this<EgressShares> {
 public:
  // How far a job may be ahead, bytes times its weight.
  static constexpr uint64_t kAhead = 1u << 20;
  // Between which a job that does not want to send is no longer waited for.
  static constexpr Nanos kLeastPatience = 2 * kMilli, kMostPatience = 100 * kMilli;

  // A client of the user: a job of its own until it says which it belongs to. Clients of one user
  // that name one job have its share together.
  std::shared_ptr<EgressShare> add(uint32_t user, uint32_t weight);

 private:
  friend class EgressShare;
  struct Job {
    explicit Job(uint32_t w) : weight(w) {}
    const uint32_t weight;
    // In kAhead's terms: bytes by weight, in 1/kScale. And what was last found that it may be.
    std::atomic<uint64_t> served{0}, limit{0};
    std::atomic<Nanos> wanted{kNever};  // when it last did; kNever: never
    uint32_t clients = 1;               // mutex_ of the shares
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
  std::atomic<uint64_t> sent_{0};  // bytes, of all
  std::mutex mutex_;               // of what follows
  std::map<std::string, std::shared_ptr<Job>> jobs_;
  uint64_t anonymous_ = 0;  // jobs without a name so far
  uint64_t reached_ = 0;    // what the least served busy job had; never falls
  Nanos patience_ = kMostPatience;
  uint64_t mark_ = 0;  // of sent_, at
  Nanos mark_at_ = kNever;
};

// One client's part. Its lanes may ask at once; join() by any thread.
class EgressShare {
 public:
  EgressShare(std::shared_ptr<EgressShares> shares, uint32_t user, uint32_t weight,
              const std::string& name);
  ~EgressShare();
  EgressShare(const EgressShare&) = delete;
  EgressShare& operator=(const EgressShare&) = delete;

  // Which job it belongs to, once that is known. What it has been served so far is not moved.
  void join(const std::string& job);
  // Whether its job may send now; it is held to want to.
  bool may_send(Nanos now);
  void sent(size_t bytes);
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // How often it might not.
  uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }

 private:
  EgressShares::Job& job() const { return *current_.load(std::memory_order_acquire); }

  const std::shared_ptr<EgressShares> shares_;
  const uint32_t user_, weight_;
  std::atomic<uint64_t> bytes_{0}, waits_{0};
  std::atomic<EgressShares::Job*> current_;
  std::string name_;                                 // of the job; the shares' mutex
  std::shared_ptr<EgressShares::Job> first_, last_;  // both stay: a lane may be reading
};

}  // namespace mcast
