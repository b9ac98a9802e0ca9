// If a resource is missing in the middle of a creation, everything made so far is released, so that
// the creation can be retried. At shutdown all groups are closed at once, then their parts, which
// have no operation in flight any more, then the lanes.
#include "engine/group_maker.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <new>
#include <set>
#include <string_view>
#include <system_error>

#include "base/log.h"
#include "engine/bootstrap.h"
#include "engine/client_group.h"
#include "engine/clock.h"
#include "engine/fault_classifier.h"
#include "engine/guarded_store.h"
#include "engine/network_group.h"
#include "engine/security.h"

namespace mcast {
namespace {

constexpr Nanos kGoodbyePatience = 2 * kSecond;
constexpr Nanos kEnginePatience = 30 * kSecond;     // for an engine that must exist
constexpr Nanos kEngineAutoPatience = 2 * kSecond;  // for an engine that may be restarting

// Whether all ranks of this job are on this host: then a waiting thread does the work itself, in
// process.
bool one_host_job() {
  const char* const local = std::getenv("LOCAL_WORLD_SIZE");
  const char* const world = std::getenv("WORLD_SIZE");
  return local != nullptr && world != nullptr && std::string_view(local) == world;
}

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

// If the engine is optional, a process with a secret checks whether the engine has the same. Jobs
// with another secret, which the engine cannot know, do without the engine; so do jobs whose ranks
// agree on a secret through the store, because some ranks may have no engine. If the engine is
// required, this process does not read its secret, so that no part of it is in its memory.
Status fits(const GroupSpec& spec, const ClientLink& link) {
  const Config& config = spec.config;
  Status served = knows(link.welcome(), link.engine_pid(), non_defaults(config));
  if (served.ok()) served = serves(link.welcome(), link.engine_pid(), config.security);
  if (!served.ok() || config.security == "off") return served;
  EngineChoice choice;
  (void)EngineChoice::parse(config.engine, choice);
  if (choice.where == EngineChoice::Where::kHost) {
    if (crypto::drop_secret_of_environment()) {
      log(LogLevel::kWarn,
          "MCAST_SECRET is of no use here: the engine of this host has the secret, and guards for "
          "this process; it was taken out of the environment");
    }
    return {};
  }
  if (!crypto::secret_is_set(config)) {
    if (config.trust_store == 0) return {};
    return Status(Code::kUnavailable, "the secret of this job passes through its store");
  }
  auto own = crypto::find_secret(config);
  if (!own.ok() || (*own)->fits(link.welcome().secret_check)) return own.status();
  return Status(Code::kUnavailable, "the engine of this host has another secret than this process");
}

// An engine that `auto` finds but cannot use deserves a warning, because somebody has installed it
// or imitates it; a missing engine does not. Once for each path.
LogLevel level_of(const Status& none, const std::string& path) {
  static std::mutex mutex;
  static auto& told = *new std::set<std::string>;
  if (none.code() != Code::kMismatch && none.code() != Code::kInvalidArgument) {
    return LogLevel::kInfo;
  }
  const std::lock_guard<std::mutex> held(mutex);
  return told.insert(path).second ? LogLevel::kWarn : LogLevel::kInfo;
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

Result<std::shared_ptr<ClientLink>> GroupMaker::link_to(const std::string& path,
                                                        const std::string& user, Nanos patience) {
  const std::lock_guard<std::mutex> one(linking_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (down_) return Status(Code::kClosed, "the engine is shut down");
    const auto it = links_.find({path, user});
    if (it != links_.end() && it->second->lost().ok() && !it->second->draining()) {
      return it->second;
    }
  }
  const auto trusted = TrustedUser::named(user);
  if (!trusted.ok()) return trusted.status();
  auto link = ClientLink::connect(path, patience, *trusted);
  if (!link.ok()) return link.status();
  const std::lock_guard<std::mutex> lock(mutex_);
  // A link that was lost, or drains, stays with its groups.
  links_[{path, user}] = *link;
  std::erase_if(all_links_, [](const auto& weak) { return weak.expired(); });
  all_links_.push_back(*link);
  return link;
}

// An engine that is being replaced makes no groups: the next connection finds the new one.
Result<std::shared_ptr<GroupBase>> GroupMaker::make_in_engine(const GroupSpec& spec,
                                                              KeyValueStore& store,
                                                              const std::string& path,
                                                              Nanos patience, Status& none) {
  const Nanos deadline = monotonic_now() + patience;
  for (;;) {
    auto link =
        link_to(path, spec.config.engine_user, std::max<Nanos>(deadline - monotonic_now(), 0));
    none = link.ok() ? fits(spec, **link) : link.status();
    if (!none.ok()) return std::shared_ptr<GroupBase>();
    auto made = (*link)->make_group(spec, store);
    if (!made.ok()) return made.status();
    if (!*made) continue;
    return std::shared_ptr<GroupBase>(
        std::make_shared<ClientGroup>(spec, *link, **made, resources_.trace()));
  }
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
  EngineChoice choice;
  (void)EngineChoice::parse(spec.config.engine, choice);
  const bool may = choice.where == EngineChoice::Where::kAuto;
  if (choice.where == EngineChoice::Where::kHost || (may && !one_host_job())) {
    Status none;
    auto made =
        make_in_engine(spec, store, choice.path, may ? kEngineAutoPatience : kEnginePatience, none);
    if (!made.ok() || *made) return made;
    if (!may) {
      (void)SecureCreation::excuse(spec, store, none);
      return none.with_context("group '" + spec.name + "'");
    }
    log(level_of(none, choice.path), "group '%s' runs in this process: %s", spec.name.c_str(),
        none.message().c_str());
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
  std::map<EnginePlace, std::shared_ptr<ClientLink>> links;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(down_, true)) return;
    live = living(groups_);
    lanes = resources_.lanes().close();
    links.swap(links_);
  }
  const auto parts = resources_.parts();
  for (const Groups& groups : {live, Groups(parts.begin(), parts.end())}) {
    give_up ? give_up_all(groups) : close_all(groups, hurry);
  }
  resources_.registrar().stop();
  for (const auto& lane : lanes) lane->stop(kGoodbyePatience);
  resources_.stop_registry();
}

void GroupMaker::lock() {
  mutex_.lock();
  resources_.lock();
}

void GroupMaker::unlock() {
  resources_.unlock();
  mutex_.unlock();
}

void GroupMaker::abandon_after_fork() noexcept {
  for (const auto& weak : all_links_) {
    if (const auto link = weak.lock()) link->abandon_after_fork();
  }
  resources_.abandon_after_fork();
}

}  // namespace mcast
