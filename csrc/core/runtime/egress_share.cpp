// Start-time fairness with slack. Each job counts the bytes it was served; a job that is more than
// the slack ahead of the least served busy job waits. The limit that a job computes holds until it
// is used up, so the lock is taken once per slack of sent bytes, and while a job waits.
//
// A job that was idle starts where the others are, minus the slack: it has no claim on bytes that
// it did not want. If no job is busy, it starts from the best served one.
//
// The time for which a job counts as busy determines which jobs are waited for without need. It is
// the time that the link has recently taken for as many bytes as the slack: in less time no job's
// lag could be made up for.
#include "runtime/egress_share.h"

#include <algorithm>
#include <utility>

namespace mcast {

std::shared_ptr<EgressShare> EgressShares::add(uint32_t user, uint32_t weight) {
  std::string name;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    name = "#" + std::to_string(anonymous_++);
  }
  return std::make_shared<EgressShare>(shared_from_this(), user, std::max(weight, 1u), name);
}

bool EgressShares::busy(const Job& job, Nanos now) const {
  const Nanos wanted = job.wanted.load(std::memory_order_relaxed);
  return wanted != kNever && now - wanted <= patience_;
}

// Lowest value among the busy jobs except one; UINT64_MAX if there is none.
uint64_t EgressShares::least(Nanos now, const Job& but) {
  uint64_t least = UINT64_MAX;
  for (const auto& [name, job] : jobs_) {
    if (job.get() != &but && busy(*job, now)) {
      least = std::min(least, job->served.load(std::memory_order_relaxed));
    }
  }
  return least;
}

void EgressShares::watch_rate(Nanos now) {
  const uint64_t sent = sent_.load(std::memory_order_relaxed);
  if (mark_at_ == kNever) {
    mark_ = sent;
    mark_at_ = now;
  }
  const uint64_t moved = sent - mark_;
  if (moved < kAhead) return;
  const double time = static_cast<double>(now - mark_at_) * static_cast<double>(kAhead);
  patience_ = std::clamp(static_cast<Nanos>(time / static_cast<double>(moved)), kLeastPatience,
                         kMostPatience);
  mark_ = sent;
  mark_at_ = now;
}

// The job wants to send again.
void EgressShares::enter(Job& job, Nanos now) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (busy(job, now)) return;
  uint64_t others = least(now, job);
  if (others == UINT64_MAX) {
    others = 0;
    for (const auto& [name, other] : jobs_) {
      others = std::max(others, other->served.load(std::memory_order_relaxed));
    }
  }
  reached_ = std::max(reached_, others);
  const uint64_t from = reached_ > kAheadServed ? reached_ - kAheadServed : 0;
  const uint64_t served = job.served.load(std::memory_order_relaxed);
  if (served < from) job.served.fetch_add(from - served, std::memory_order_relaxed);
  job.limit.store(0, std::memory_order_relaxed);
  job.wanted.store(now, std::memory_order_relaxed);
}

bool EgressShares::may(Job& job, Nanos now) {
  const uint64_t served = job.served.load(std::memory_order_relaxed);
  if (served <= job.limit.load(std::memory_order_relaxed)) return true;
  const std::lock_guard<std::mutex> held(mutex_);
  watch_rate(now);
  const uint64_t all = std::min(served, least(now, job));
  reached_ = std::max(reached_, all);
  job.limit.store(all + kAheadServed, std::memory_order_relaxed);
  return served <= all + kAheadServed;
}

void EgressShares::leave(const std::shared_ptr<Job>& job) {
  if (--job->clients > 0) return;
  std::erase_if(jobs_, [&](const auto& entry) { return entry.second == job; });
  jobs_count_.store(jobs_.size(), std::memory_order_relaxed);
}

EgressShare::EgressShare(std::shared_ptr<EgressShares> shares, uint32_t user, uint32_t weight,
                         const std::string& name)
    : shares_(std::move(shares)),
      user_(user),
      weight_(weight),
      current_(nullptr),
      name_(name),
      first_(std::make_shared<EgressShares::Job>(weight)) {
  const std::lock_guard<std::mutex> held(shares_->mutex_);
  shares_->jobs_[name_] = last_ = first_;
  shares_->jobs_count_.store(shares_->jobs_.size(), std::memory_order_relaxed);
  current_.store(first_.get(), std::memory_order_release);
}

EgressShare::~EgressShare() {
  const std::lock_guard<std::mutex> held(shares_->mutex_);
  shares_->leave(last_);
}

void EgressShare::join(const std::string& job) {
  const std::string name = std::to_string(user_) + " " + job;
  const std::lock_guard<std::mutex> held(shares_->mutex_);
  if (last_ != first_) return;  // a process belongs to one job
  auto& jobs = shares_->jobs_;
  jobs.erase(name_);
  auto& there = jobs[name];
  if (there) {
    there->clients++;
    last_ = there;
  } else {
    last_ = there = std::make_shared<EgressShares::Job>(weight_);
  }
  name_ = name;
  shares_->jobs_count_.store(jobs.size(), std::memory_order_relaxed);
  current_.store(last_.get(), std::memory_order_release);
}

bool EgressShare::may_send(Nanos now) {
  EgressShares::Job& mine = job();
  const Nanos before = mine.wanted.load(std::memory_order_relaxed);
  if (shares_->alone()) {
    mine.wanted.store(now, std::memory_order_relaxed);
    return true;
  }
  // (Whether that is long enough ago is checked under the lock.)
  if (before == kNever || now - before > EgressShares::kLeastPatience) shares_->enter(mine, now);
  mine.wanted.store(now, std::memory_order_relaxed);
  if (shares_->may(mine, now)) return true;
  waits_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void EgressShare::sent(size_t bytes) {
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  shares_->sent_.fetch_add(bytes, std::memory_order_relaxed);
  EgressShares::Job& mine = job();
  mine.served.fetch_add(bytes * EgressShares::kScale / mine.weight, std::memory_order_relaxed);
}

}  // namespace mcast
