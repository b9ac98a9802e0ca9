// ClientSource: makes groups in the engine of this host.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host_engine/client/client_link.h"
#include "runtime/group_source.h"

namespace mcast {

class ClientSource final : public GroupSource {
 public:
  Result<std::shared_ptr<GroupBase>> make(const GroupSpec& spec, KeyValueStore& store,
                                          const std::shared_ptr<Trace>& trace) override;
  std::shared_ptr<void> shutdown() override;
  void lock() override { mutex_.lock(); }
  void unlock() override { mutex_.unlock(); }
  void abandon_after_fork() noexcept override;

 private:
  using EnginePlace = std::pair<std::string, std::string>;  // path and user
  using Links = std::map<EnginePlace, std::shared_ptr<ClientLink>>;

  // Null: no engine accepts it within `patience`, for the reason `none`.
  Result<std::shared_ptr<GroupBase>> make_within(const GroupSpec& spec, KeyValueStore& store,
                                                 const std::shared_ptr<Trace>& trace,
                                                 const std::string& path, Nanos patience,
                                                 Status& none);
  // The link to the engine of `user` (setting engine_user) at `path`. Fails if none replies within
  // `patience`.
  Result<std::shared_ptr<ClientLink>> link_to(const std::string& path, const std::string& user,
                                              Nanos patience);

  std::mutex linking_;  // held while an engine is asked for the first time
  std::mutex mutex_;    // guards the members below
  Links links_;
  // Includes links that only groups still hold: a child must not keep any of their sockets.
  std::vector<std::weak_ptr<ClientLink>> all_links_;
  bool down_ = false;
};

}  // namespace mcast
