// A group of ranks of one host in a simulated world: the real state machines (shm/core.h) over
// plain memory instead of a shared segment. A lane gets a turn when it is woken, when an operation
// is posted, and at each tick; wake-ups between ranks and copies take time.
//
// Threads: one.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/group_base.h"
#include "shm/core.h"
#include "shm/process.h"
#include "sim/world/sim_lane.h"

namespace mcast::sim {

// Services of the world that the ranks of a host need.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual Nanos now() const = 0;
  virtual void at(Nanos when, std::function<void()> action) = 0;
  virtual bool killed(uint32_t rank) const = 0;
  virtual bool paused(uint32_t rank) const = 0;
  // One object for all ranks: freed memory cannot be read.
  virtual const PeerProcess& memory() const = 0;
};

class SimHostLane;

// The control block of a group, and its lanes by member.
class SimSegment {
 public:
  // `ranks`: ranks in the world, by member.
  explicit SimSegment(std::vector<uint32_t> ranks);
  ControlBlock block() const { return ControlBlock(base_, static_cast<uint32_t>(ranks_.size())); }
  const std::vector<uint32_t>& ranks() const { return ranks_; }

 private:
  friend class SimHostGroup;
  friend class SimHostLane;
  const std::vector<uint32_t> ranks_;
  std::vector<uint64_t> memory_;  // zeroed
  std::byte* base_;
  PerLane<std::vector<std::weak_ptr<SimHostLane>>> lanes_;
};

class SimHostGroup final : public GroupBase {
 public:
  // `world` outlives the group; spec.clock is set.
  SimHostGroup(const GroupSpec& spec, Surroundings& world,
               const std::shared_ptr<SimSegment>& segment);
  ~SimHostGroup() override;

  std::function<void()> waker() const override;
  GroupStats stats() const override { return common_stats(); }
  // Must be called when the process runs again after a pause.
  void look_again();
  // Kills the process: no code of it runs any more.
  void kill();

 private:
  Status push(LaneId lane, Post post) override;
  void fail_lanes(const Status& why) override;
  void close_lanes(Nanos deadline, bool force, Completion closed) override;
  bool has_lanes() const override { return true; }
  bool read_by_peers() const override { return true; }
  bool copies_own_block() const override { return true; }

  PerLane<std::shared_ptr<SimHostLane>> lanes_;
};

}  // namespace mcast::sim
