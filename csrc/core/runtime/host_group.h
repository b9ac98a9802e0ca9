// A group whose ranks share this host: it uses two lanes over shared memory, and no sockets.
#pragma once

#include <functional>
#include <memory>

#include "runtime/group_base.h"
#include "shm/lane.h"

namespace mcast {

class HostGroup final : public GroupBase {
 public:
  HostGroup(const GroupSpec& spec, PeerRegistry& registry, std::shared_ptr<HostShared> shared,
            PeerMemory memory, std::shared_ptr<Trace> trace);
  ~HostGroup() override;

  bool help(LaneId lane, const std::function<bool()>& done, Nanos until) override;
  std::function<void()> waker() const override;
  bool carries_messages() const override { return true; }
  GroupStats stats() const override { return common_stats(); }

 private:
  Status push(LaneId lane, Post post) override;
  Status push_message(MessagePost post) override;
  void pushed(LaneId lane, std::optional<Sequence> awaited) override;
  void pushed_message() override;
  void fail_lanes(const Status& why) override;
  void close_lanes(Nanos deadline, bool force, Completion closed) override;
  bool has_lanes() const override { return true; }
  bool read_by_peers() const override { return memory_ != PeerMemory::kSlots; }
  bool copies_own_block() const override { return true; }

  PeerRegistry& registry_;
  const PeerMemory memory_;
  const std::shared_ptr<HostShared> shared_;
  PerLane<std::shared_ptr<HostLane>> lanes_;
};

}  // namespace mcast
