// One lock for small objects; the pool has its own for lanes, which take long to make. Everything
// is made at first use.
#include "runtime/resources.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/host.h"

namespace mcast {

Resources::Resources(EngineContext context, std::unique_ptr<Aggregation> aggregation)
    : context_(std::move(context)),
      lanes_(context_),
      aggregation_(std::move(aggregation)),
      networks_(context_.may_reach) {}

Result<PeerRegistry*> Resources::registry() {
  const std::lock_guard<std::mutex> held(mutex_);
  if (!registry_) {
    Result<std::unique_ptr<PeerRegistry>> made = PeerRegistry::make(monotonic_now);
    if (!made.ok()) return made.status();
    registry_ = std::move(made).value();
  }
  return registry_.get();
}

std::string Resources::salt() {
  const std::lock_guard<std::mutex> held(mutex_);
  return salt_.value(job_salt());
}

void Resources::adopt_salt(const std::string& salt) {
  const std::lock_guard<std::mutex> held(mutex_);
  salt_.adopt(salt);
  if (context_.share) context_.share->join(salt_.value(""));
}

std::shared_ptr<Trace> Resources::start_trace(size_t operations) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (!trace_) trace_ = std::make_shared<Trace>(operations);
  return trace_;
}

std::shared_ptr<Trace> Resources::trace() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return trace_;
}

void Resources::add_part(const std::shared_ptr<GroupBase>& part) {
  const std::lock_guard<std::mutex> held(mutex_);
  remember(parts_, part);
}

std::vector<std::shared_ptr<GroupBase>> Resources::parts() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return living(parts_);
}

void Resources::lock() {
  lanes_.lock();
  mutex_.lock();
  if (aggregation_) aggregation_->lock();
}

void Resources::unlock() {
  if (aggregation_) aggregation_->unlock();
  mutex_.unlock();
  lanes_.unlock();
}

void Resources::abandon_after_fork() noexcept {
  lanes_.abandon_after_fork();
  if (aggregation_) aggregation_->abandon_after_fork();
  if (registry_) registry_->abandon_after_fork();
}

void Resources::stop_registry() {
  if (registry_) registry_->stop();
}

void remember(std::vector<std::weak_ptr<GroupBase>>& groups,
              const std::shared_ptr<GroupBase>& group) {
  groups.erase(
      std::remove_if(groups.begin(), groups.end(), [](const auto& g) { return g.expired(); }),
      groups.end());
  groups.push_back(group);
}

std::vector<std::shared_ptr<GroupBase>> living(
    const std::vector<std::weak_ptr<GroupBase>>& groups) {
  std::vector<std::shared_ptr<GroupBase>> found;
  for (const auto& weak : groups) {
    if (auto group = weak.lock()) found.push_back(std::move(group));
  }
  return found;
}

}  // namespace mcast
