// If a resource is missing in the middle of a creation, everything made so far is released, so that
// the creation can be retried. At shutdown all groups are closed at once, then their parts, which
// have no operation in flight any more, then the lanes.
#include "runtime/group_maker.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <new>
#include <system_error>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/bootstrap.h"
#include "runtime/guarded_store.h"
#include "runtime/network_group.h"
#include "runtime/security.h"
#include "transport/fault_classifier.h"

namespace mcast {
namespace {

constexpr Nanos kGoodbyePatience = 2 * kSecond;

Status check_spec(const GroupSpec& spec) {
  if (spec.size == 0 || spec.size >= kNoMember || spec.rank >= spec.size) {
    return Status(Code::kInvalidArgument, "group '" + spec.name + "': rank " +
                                              std::to_string(spec.rank) + " of " +
                                              std::to_string(spec.size));
  }
  // Also checked if one rank needs no transport: an invalid text must not go unnoticed until there
  // are two.
  const auto rules = parse_faults(spec.config.faults, &wire_fault_classifier());
  return rules.ok() ? Status() : rules.status().with_context("setting faults (MCAST_FAULTS)");
}

void warn_of_unused_secret(const Config& config) {
  static std::atomic<bool> told{false};
  if (!crypto::secret_is_set(config) || told.exchange(true)) return;
  log(LogLevel::kWarn,
      "there is a secret (MCAST_SECRET or MCAST_SECRET_FILE), but security is off: nothing is "
      "authenticated; set MCAST_SECURITY");
}

using Groups = std::vector<std::shared_ptr<GroupBase>>;

// Closes all at once, so that the lingers of many groups do not add up.
void give_up_all(const Groups& groups) {
  std::vector<std::pair<Nanos, std::future<Status>>> closing;
  for (const auto& group : groups) {
    closing.emplace_back(group->linger(), group->start_close(group->linger(), true));
  }
  for (auto& [limit, closed] : closing) {
    closed.wait_for(std::chrono::nanoseconds(std::min<Nanos>(limit, 86400 * kSecond) + kSecond));
  }
}

// Waits until all is confirmed, or until `hurry` ends the wait.
void close_all(const Groups& groups, const std::function<bool()>& hurry) {
  std::vector<std::pair<GroupBase*, std::future<Status>>> closing;
  for (const auto& group : groups) {
    closing.emplace_back(group.get(), group->start_close(kNever, false));
  }
  for (auto& [group, closed] : closing) {
    if (!GroupBase::await_close(closed, hurry)) return give_up_all(groups);
    if (const Status outcome = closed.get(); !outcome.ok()) {
      log(LogLevel::kWarn, "group '%s' closed: %s", group->name().c_str(),
          outcome.message().c_str());
    }
  }
}

}  // namespace

GroupMaker::GroupMaker(EngineContext context) : GroupMaker(make_products(context), context) {}

GroupMaker::GroupMaker(Products products, EngineContext context)
    : resources_(std::move(context), std::move(products.aggregation)),
      source_(std::move(products.source)) {}

// A setting that names a product fails in a build without it.
Status GroupMaker::check_products(const Config& config) {
  EngineChoice choice;
  (void)EngineChoice::parse(config.engine, choice);
  if (source_ == nullptr && choice.where == EngineChoice::Where::kHost) {
    return Status(Code::kUnavailable, "engine=" + config.engine +
                                          ", but this build has no engine of the host; build with "
                                          "MCAST_HOST_ENGINE=ON, or set engine=auto");
  }
  if (resources_.aggregation() == nullptr && !config.aggregators.empty()) {
    return Status(Code::kUnavailable,
                  "aggregators are set, but this build has no aggregation; build with "
                  "MCAST_AGGREGATION=ON, or do not set aggregators");
  }
  return {};
}

// If this rank cannot take part, it informs the others, so that they do not wait for it.
Result<std::shared_ptr<GroupBase>> GroupMaker::make_guarded(const GroupSpec& spec,
                                                            KeyValueStore& store) {
  const auto named = [&spec](const Status& why) {
    return why.with_context("group '" + spec.name + "'");
  };
  auto security = SecureCreation::make(spec, resources_.context().security.get());
  if (!security.ok()) {
    (void)SecureCreation::excuse(spec, store, security.status());
    return named(security.status());
  }
  const Nanos deadline = monotonic_now() + std::min<Nanos>(spec.timeout, kNever / 2);
  if (Status status = (*security)->share_secret(store, deadline); !status.ok()) {
    (void)SecureCreation::excuse(spec, store, status);
    return named(status);
  }
  GuardedStore guarded(store, spec, **security);
  return Bootstrap(resources_, spec, guarded, security->get()).run();
}

Result<std::shared_ptr<GroupBase>> GroupMaker::make(const GroupSpec& spec, KeyValueStore& store) {
  if (spec.size == 1) {
    return std::shared_ptr<GroupBase>(std::make_shared<NetworkGroup>(spec, NetworkGroupParts()));
  }
  const bool guarded = spec.config.security != "off";
  if (!guarded && !resources_.context().security) warn_of_unused_secret(spec.config);
  if (const Status lacks = check_products(spec.config); !lacks.ok()) {
    (void)SecureCreation::excuse(spec, store, lacks);
    return lacks.with_context("group '" + spec.name + "'");
  }
  if (source_ != nullptr) {
    auto made = source_->make(spec, store, resources_.trace());
    if (!made.ok() || *made) return made;
  }
  if (guarded) return make_guarded(spec, store);
  return Bootstrap(resources_, spec, store).run();
}

Result<std::shared_ptr<GroupBase>> GroupMaker::create_group(const GroupSpec& spec,
                                                            KeyValueStore& store) {
  std::string why;
  try {
    if (Status status = check_spec(spec); !status.ok()) return status;
    resources_.start_trace(spec.config.trace);
    Result<std::shared_ptr<GroupBase>> made = make(spec, store);
    if (made.ok()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      remember(groups_, *made);
    }
    return made;
  } catch (const std::bad_alloc&) {
    why = "out of memory";
  } catch (const std::system_error& error) {
    why = std::string("cannot start a thread: ") + error.what();
  }
  return Status(Code::kResourceExhausted, "group '" + spec.name + "': " + why);
}

std::vector<TraceEvent> GroupMaker::trace() const {
  const std::shared_ptr<Trace> trace = resources_.trace();
  return trace ? trace->events() : std::vector<TraceEvent>();
}

std::vector<std::shared_ptr<Group>> GroupMaker::groups() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto live = living(groups_);
  return {live.begin(), live.end()};
}

void GroupMaker::shutdown(bool give_up, const std::function<bool()>& hurry) {
  std::vector<std::shared_ptr<GroupBase>> live;
  std::vector<std::shared_ptr<LaneThread>> lanes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(down_, true)) return;
    live = living(groups_);
    lanes = resources_.lanes().close();
  }
  const std::shared_ptr<void> needed = source_ ? source_->shutdown() : nullptr;
  const auto parts = resources_.parts();
  for (const Groups& groups : {live, Groups(parts.begin(), parts.end())}) {
    give_up ? give_up_all(groups) : close_all(groups, hurry);
  }
  if (Aggregation* const aggregation = resources_.aggregation()) aggregation->stop();
  for (const auto& lane : lanes) lane->stop(kGoodbyePatience);
  resources_.stop_registry();
}

void GroupMaker::lock() {
  if (source_) source_->lock();
  mutex_.lock();
  resources_.lock();
}

void GroupMaker::unlock() {
  resources_.unlock();
  mutex_.unlock();
  if (source_) source_->unlock();
}

void GroupMaker::abandon_after_fork() noexcept {
  if (source_) source_->abandon_after_fork();
  resources_.abandon_after_fork();
}

}  // namespace mcast
