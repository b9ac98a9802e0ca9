// Links to engines are shared by the groups of a process; an engine that is being replaced makes no
// groups, so the next group connects to the new one.
#include "host_engine/client/client_source.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "host_engine/client/client_group.h"
#include "runtime/security.h"

namespace mcast {
namespace {

constexpr Nanos kEnginePatience = 30 * kSecond;     // for an engine that must exist
constexpr Nanos kEngineAutoPatience = 2 * kSecond;  // for an engine that may be restarting

// Whether all ranks of this job are on this host: then a waiting thread does the work itself, in
// process.
bool one_host_job() {
  const char* const local = std::getenv("LOCAL_WORLD_SIZE");
  const char* const world = std::getenv("WORLD_SIZE");
  return local != nullptr && world != nullptr && std::string_view(local) == world;
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
          "MCAST_SECRET is ignored and was removed from the environment: the engine of this host "
          "has the secret, and protects this process's traffic");
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

}  // namespace

Result<std::shared_ptr<ClientLink>> ClientSource::link_to(const std::string& path,
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
Result<std::shared_ptr<GroupBase>> ClientSource::make_within(const GroupSpec& spec,
                                                             KeyValueStore& store,
                                                             const std::shared_ptr<Trace>& trace,
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
    return std::shared_ptr<GroupBase>(std::make_shared<ClientGroup>(spec, *link, **made, trace));
  }
}

Result<std::shared_ptr<GroupBase>> ClientSource::make(const GroupSpec& spec, KeyValueStore& store,
                                                      const std::shared_ptr<Trace>& trace) {
  EngineChoice choice;
  (void)EngineChoice::parse(spec.config.engine, choice);
  const bool may = choice.where == EngineChoice::Where::kAuto;
  if (choice.where != EngineChoice::Where::kHost && (!may || one_host_job())) {
    return std::shared_ptr<GroupBase>();
  }
  Status none;
  auto made = make_within(spec, store, trace, choice.path,
                          may ? kEngineAutoPatience : kEnginePatience, none);
  if (!made.ok() || *made) return made;
  if (!may) {
    (void)SecureCreation::excuse(spec, store, none);
    return none.with_context("group '" + spec.name + "'");
  }
  log(level_of(none, choice.path), "group '%s' runs in this process: %s", spec.name.c_str(),
      none.message().c_str());
  return std::shared_ptr<GroupBase>();
}

std::shared_ptr<void> ClientSource::shutdown() {
  auto links = std::make_shared<Links>();
  const std::lock_guard<std::mutex> lock(mutex_);
  down_ = true;
  links->swap(links_);
  return links;
}

void ClientSource::abandon_after_fork() noexcept {
  for (const auto& weak : all_links_) {
    if (const auto link = weak.lock()) link->abandon_after_fork();
  }
}

}  // namespace mcast
