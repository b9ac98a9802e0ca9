// A group whose ranks share this host: no sockets, two lanes over shared memory.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "collective/host_inputs.h"
#include "engine/group_base.h"
#include "engine/host_lane.h"

namespace mcast {

class HostGroup final : public GroupBase {
 public:
  HostGroup(const GroupSpec& spec, HostHub& hub, std::shared_ptr<HostShared> shared, bool direct,
            std::shared_ptr<Trace> trace);
  ~HostGroup() override;

  bool help(LaneId lane, const std::function<bool()>& done, Nanos until) override;
  std::function<void()> waker() const override;
  GroupStats stats() const override { return common_stats(); }

 private:
  Status push(LaneId lane, Post post) override;
  void pushed(LaneId lane) override;
  void fail_lane(LaneId lane, const Status& why) override;
  void close_lane(LaneId lane, Nanos deadline, bool force, Completion closed) override;
  bool has_lanes() const override { return true; }
  bool read_by_peers() const override { return direct_; }
  bool copies_own_block() const override { return true; }

  HostHub& hub_;
  const bool direct_;
  const std::shared_ptr<HostShared> shared_;
  PerLane<std::shared_ptr<HostLane>> lanes_;
};

// Finding the other ranks' memory when a group is made. All ranks end with the same verdict.
class HostMeeting {
 public:
  // Before the records are exchanged: rank 0 makes the segment, unless the group takes the network
  // in any case. Not ok: this rank cannot share memory; the others learn it from the missing
  // address.
  static Result<HostMeeting> prepare(const GroupSpec& spec, const HostHub& hub, bool segment);
  const HostAddress& address() const { return address_; }
  // Maps everybody's memory; the verdict of this rank. Engine's lock held.
  void attach(const std::vector<HostAddress>& all, const GroupSpec& spec, HostHub& hub);
  // A group of several hosts: finds the ranks of this one only.
  void attach_neighbours(const std::vector<HostAddress>& all, const std::vector<uint32_t>& host_of,
                         const GroupSpec& spec, HostHub& hub);
  // Reads their memory.
  HostReader reader() const;
  // "direct", "slots", or why not; to be told to the others.
  const std::string& verdict() const { return verdict_; }
  // Of everybody's verdicts: empty if all can, else why not. `direct`: all can read all.
  static std::string unite(const std::vector<std::string>& verdicts, bool& direct);
  // While the others' verdicts are waited for: a rank that has ended or been silent for `limit`, of
  // those that were found. Ok: none.
  Status look_after(Nanos now, Nanos limit);
  std::shared_ptr<HostShared> take();

 private:
  void find(size_t rank, const HostAddress& address, const GroupSpec& spec, HostHub& hub);

  HostAddress address_;
  std::shared_ptr<HostShared> shared_ = std::make_shared<HostShared>();
  std::string verdict_;
  struct Asked {
    uint64_t question = 0;
    Nanos answered = 0;
  };
  std::vector<Asked> asked_;  // by rank
};

}  // namespace mcast
