// One group of a client, carried out here: records become posts, ends become completions.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host_engine/server/mover.h"
#include "host_engine/server/tenant_link.h"
#include "runtime/group_base.h"

namespace mcast::service {

// Indexed by their number: the first is ipc::Space::kFirstArena.
using Arenas = std::vector<std::shared_ptr<Segment>>;

// Used by the tenant's thread.
class TenantGroup {
 public:
  // `in_flight` counts the tenant's operations, `most` is their limit.
  TenantGroup(uint32_t handle, std::string name, std::shared_ptr<GroupBase> group,
              std::shared_ptr<TenantLink> link, std::shared_ptr<std::atomic<uint32_t>> in_flight,
              uint32_t most);

  // Returns an error if the record cannot come from a correct client, which is then ended. Any
  // other error of a post becomes its completion's status, and the group is aborted. `mover`: for
  // slices in the client's own memory; null if it has offered none.
  Status post(const ipc::PostRecord& head, const std::vector<ipc::SliceRun>& runs,
              const Arenas& arenas, const std::shared_ptr<Mover>& mover);
  // The same for a message (tenant_point_to_point.cpp).
  Status message(const ipc::MessageRecord& record, const Arenas& arenas,
                 const std::shared_ptr<Mover>& mover);
  void ready(const ipc::ReadyRecord& record);

  uint32_t handle() const { return handle_; }
  const std::string& name() const { return name_; }
  // The rank is lost; `why` describes its process.
  void lose(const std::string& why);
  // The same while the group is being closed, which is then over soon.
  void lose_closing(const std::string& why);

  Group& group() { return *group_; }
  const std::shared_ptr<GroupBase>& shared() const { return group_; }

 private:
  using Key = std::pair<LaneId, Sequence>;
  struct Staged {
    std::vector<Slice> inputs;
    std::shared_ptr<Mover> mover;  // for inputs in the client's own memory
    std::shared_ptr<Transfer> transfer;
  };
  // Shared with callbacks on lanes.
  struct Flights {
    std::mutex mutex;
    std::map<Key, Staged> staged;
    std::map<uint32_t, Staged> messages;  // all messages in flight, by number
    bool told_failure = false;
    // Returns null if it has ended. Call with the mutex held.
    const Staged* find(const ipc::ReadyRecord& record) const;
  };
  // Memory of a post.
  struct Laid {
    std::vector<Slice> inputs, outputs;
    std::vector<OwnSlice> own;  // slices without a place yet
    std::shared_ptr<Mover> mover;
    std::shared_ptr<Transfer> transfer;  // the transfer of `own`
  };
  Status lost(const std::string& why) const;
  // Ends a post and its group with `why`; `end`: the record that reports it.
  void refuse(const ipc::Completed& end, const Status& why);
  void refuse(const ipc::PostRecord& head, const Status& why);
  // Ok if one more may be in flight.
  Status room() const;
  // Errors as in post().
  static Status lay_out(const std::vector<ipc::SliceRun>& runs, bool staged, const Arenas& arenas,
                        Laid& laid);
  // The same; `refused` is set to the reason if there is none.
  static Status start_transfer(const Transfer::What& what, Laid& laid, Status& refused);
  static Transfer::Hooks hooks_for(const std::weak_ptr<GroupBase>& group,
                                   std::function<void()> wake);
  // Returns true if the group has failed and the client has not been notified of it yet.
  static bool first_failure(Flights& flights, const Status& status);
  // Reports its end when the mover has copied all of it; final parts of outputs are reported
  // earlier, if the kind of call allows it.
  using Finish = std::function<void(const Status&, bool held)>;  // `held`: as in DoneRecord
  void end_by_mover(const Laid& laid, Finish finish, bool tells_final, PostOptions& options) const;
  PostOptions options_of(const ipc::PostRecord& head, const Laid& laid);
  Status call(const ipc::MessageRecord& record, const Laid& laid);
  Finish end_of(uint32_t number, std::shared_ptr<std::atomic<Member>> source) const;

  const uint32_t handle_;
  const std::string name_;
  const std::shared_ptr<GroupBase> group_;
  const std::shared_ptr<TenantLink> link_;
  const std::shared_ptr<std::atomic<uint32_t>> in_flight_;
  const uint32_t most_;
  const std::function<void()> waker_;
  const std::shared_ptr<Flights> flights_ = std::make_shared<Flights>();
};

}  // namespace mcast::service
