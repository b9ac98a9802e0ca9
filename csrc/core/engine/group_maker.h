// Groups, and what they share: of this process, or, in an engine of the host, of one client.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "engine/client_link.h"
#include "engine/group.h"
#include "engine/group_base.h"
#include "engine/resources.h"

namespace mcast {

// Thread-safe. Its destruction ends threads: groups must be gone, and shutdown() called.
class GroupMaker {
 public:
  explicit GroupMaker(EngineContext context = {}) : resources_(std::move(context)) {}
  const EngineContext& context() const { return resources_.context(); }

  // Blocks until all ranks have called it, multicast has been probed and the path is agreed.
  Result<std::shared_ptr<GroupBase>> create_group(const GroupSpec& spec, KeyValueStore& store);

  // Waits for confirmed ends of all groups (Group::close_in_order()), stops the lanes. `give_up`:
  // as Group::give_up(), else nothing is aborted. create_group() after it is kClosed. `hurry`: as
  // of that; asked unless give_up.
  void shutdown(bool give_up, const std::function<bool()>& hurry = {});

  std::vector<std::shared_ptr<Group>> groups() const;
  std::vector<TraceEvent> trace() const;

  // Around a fork, so that a child never inherits a lock held.
  void lock();
  void unlock();
  // In the child, locked: closes descriptors; nothing else of this may be used.
  void abandon_after_fork() noexcept;

 private:
  Result<std::shared_ptr<GroupBase>> make(const GroupSpec& spec, KeyValueStore& store);
  Result<std::shared_ptr<GroupBase>> make_guarded(const GroupSpec& spec, KeyValueStore& store);
  // Null: no engine takes it within `patience`, for the reason `none`.
  Result<std::shared_ptr<GroupBase>> make_in_engine(const GroupSpec& spec, KeyValueStore& store,
                                                    const std::string& path, Nanos patience,
                                                    Status& none);
  // The link to the engine of `user` (setting engine_user) at `path`; not ok: none answers within
  // `patience`.
  Result<std::shared_ptr<ClientLink>> link_to(const std::string& path, const std::string& user,
                                              Nanos patience);

  Resources resources_;
  std::mutex linking_;        // held while an engine is asked for the first time
  mutable std::mutex mutex_;  // of what follows
  using EnginePlace = std::pair<std::string, std::string>;  // path and user
  std::map<EnginePlace, std::shared_ptr<ClientLink>> links_;
  // Those as well that only groups still have: a child must not keep any of their sockets.
  std::vector<std::weak_ptr<ClientLink>> all_links_;
  std::vector<std::weak_ptr<GroupBase>> groups_;
  bool down_ = false;
};

}  // namespace mcast
