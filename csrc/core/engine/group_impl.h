// A group on two lanes of the network: the multicast lane and the reduce lane.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "engine/group_base.h"
#include "engine/lane_thread.h"
#include "engine/rendezvous.h"
#include "engine/split.h"

namespace mcast {

class GroupImpl final : public GroupBase {
 public:
  // A group of one rank needs no lanes: null.
  GroupImpl(const GroupSpec& spec, std::shared_ptr<LaneThread> lane,
            std::shared_ptr<LaneThread> reduce);
  // Before open(): what the multicast lanes have received, and where operations are recorded.
  void observe(std::shared_ptr<const std::atomic<uint64_t>> arrived, std::shared_ptr<Trace> trace) {
    arrived_ = std::move(arrived);
    trace_ = std::move(trace);
  }
  void explain_transport(const std::string& why) { fixed_.transport_reason = why; }
  // Between ranks of one host: why not by shared memory; for the log.
  void shares_not(const std::string& why) { not_shared_ = "; no shared memory: " + why; }
  // Before open(): ranks of a host fold their inputs of reductions before anything goes over the
  // network; `reader` reads their memory.
  void fold_on_hosts(HostReader reader) { read_host_ = std::move(reader); }
  ~GroupImpl() override;

  // Adds the group to its lane, probes, waits until the path is decided.
  Status open(const Agreement& agreement, Nanos deadline, const std::function<bool()>& interrupted);

  // Large broadcasts and all-gathers go by parts from now on; before the first operation.
  void split(std::unique_ptr<Split> how);

  std::function<void()> waker() const override;
  GroupStats stats() const override;

 private:
  Status push(size_t lane, Post post) override;
  void fail_lane(size_t lane, const Status& why) override;
  void close_lane(size_t lane, Nanos deadline, bool force, Completion closed) override;
  Status push_split(Post post);
  Status push_to_lane(size_t lane, Post post);
  bool has_lanes() const override;
  void add_to_lane(size_t lane, const GroupParams& params, const MulticastAddress& address,
                   Echo echo, const std::vector<StreamAddress>& peers, Lane& l, Nanos now);
  Status creation_timeout(Nanos deadline) const;
  void warn_of_ring() const;

  const Nanos creation_limit_;
  const std::array<std::shared_ptr<LaneThread>, 2> lanes_;  // multicast, reduce
  std::shared_ptr<const std::atomic<uint64_t>> arrived_;
  uint64_t tag_ = 0;
  std::string not_shared_;
  HostReader read_host_;
  // What the lanes' failure listeners fail as well. They do so under the mutex, and never own it:
  // its groups cannot be destroyed on a lane's thread.
  struct SplitHolder {
    std::mutex mutex;
    Split* split = nullptr;
  };
  std::shared_ptr<SplitHolder> holder_ = std::make_shared<SplitHolder>();
  std::unique_ptr<Split> split_;
};

}  // namespace mcast
