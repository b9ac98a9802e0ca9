// ClientGroup: a group that an engine of the host carries out. This process stages memory and
// posts.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "host_engine/client/client_link.h"
#include "host_engine/client/client_staging.h"
#include "runtime/group_base.h"

namespace mcast {

class ClientGroup final : public GroupBase {
 public:
  // The group already exists in the engine.
  ClientGroup(const GroupSpec& spec, std::shared_ptr<ClientLink> link, const ipc::GroupMade& made,
              std::shared_ptr<Trace> trace);
  ~ClientGroup() override;

  bool carries_messages() const override { return carries_messages_; }
  Status maps_pool() override;
  bool help(LaneId lane, const std::function<bool()>& done, Nanos until) override;
  std::function<void()> waker() const override;
  void abort(const std::string& reason) override;
  GroupStats stats() const override;

 private:
  // State that outlives the group while other threads still feed it or report to it.
  class Flights;

  Status push(LaneId lane, Post post) override;
  Status push_barrier(Post post, Sequence reduce_sequence) override;
  void pushed(LaneId lane, std::optional<Sequence> awaited) override;
  Status push_message(MessagePost post) override;
  void pushed_message() override;
  void fail_lanes(const Status& why) override;
  void close_lanes(Nanos deadline, bool force, Completion closed) override;
  bool has_lanes() const override { return true; }
  bool copies_own_block() const override { return true; }
  Status push_record(LaneId lane, Post post, std::optional<Sequence> reduce_sequence);
  // Ends a group that has been closed, or that nobody will close any more.
  static void part(const std::shared_ptr<ClientLink>& link, uint32_t handle,
                   const std::shared_ptr<Flights>& flights);

  const std::shared_ptr<ClientLink> link_;
  const uint32_t handle_;
  const bool carries_messages_;  // reported by the engine
  const ClientAccess access_;
  const std::shared_ptr<Flights> flights_;
};

}  // namespace mcast
