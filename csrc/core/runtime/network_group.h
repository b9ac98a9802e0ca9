// A group on two lanes of the network: the multicast lane and the reduce lane.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/aggregation.h"
#include "runtime/group_base.h"
#include "runtime/lane.h"
#include "runtime/lane_driver.h"
#include "runtime/rendezvous.h"
#include "runtime/security.h"
#include "runtime/split.h"

namespace mcast {

// Parts that a group is made of, besides its specification.
struct NetworkGroupParts {
  Lanes lanes;                   // null: a group of one rank, which needs none
  std::string transport_reason;  // why this transport was chosen; for stats
  std::string not_shared;        // why ranks of one host share no memory; for the log, may be empty
  // Reads the memory of ranks of this host. If set, the ranks of a host fold their inputs of
  // reductions before anything is sent over the network.
  HostReader read_host;
  std::shared_ptr<const std::atomic<uint64_t>> arrived;  // bytes, on all multicast lanes
  std::shared_ptr<Trace> trace;                          // null: not traced
  ExternalFoldMaker make_fold = nullptr;                 // null: this build has no aggregation
  // If set, aggregators may fold for the group; rank 0 asks them.
  std::shared_ptr<GroupFold> fold;
  Guards guards;           // of a guarded group; otherwise null
  SecurityStats security;  // the part that does not change
};

// Time that a creation waits for its first roster.
inline constexpr Nanos kFirstRoster = 2 * kSecond;

class NetworkGroup final : public GroupBase {
 public:
  NetworkGroup(const GroupSpec& spec, NetworkGroupParts parts);
  ~NetworkGroup() override;

  // Adds the group to its lanes, probes, and waits until the path is decided. `interrupted`: as in
  // GroupSpec. Call once; not in a group of one rank.
  Status open(const Agreement& agreement, Nanos deadline, const std::function<bool()>& interrupted);
  // The two halves of open(), without waiting. begin_open() adds the group to its lanes and probes.
  // `probed` runs once, in the multicast lane's context. Members that cannot be reached are tried
  // again until `deadline`. Returns false if a lane has ended. settle(), once that has succeeded,
  // makes the group usable.
  bool begin_open(const Agreement& agreement, Completion probed, Nanos deadline = 0);
  void settle(const Agreement& agreement);

  // Carries large broadcasts and all-gathers in parts from now on. Call before the first operation.
  void split(std::unique_ptr<Split> how);

  bool carries_messages() const override { return has_lanes(); }
  std::function<void()> waker() const override;
  GroupStats stats() const override;

 private:
  // Made from the parts and the agreement when the group is created.
  GroupParams make_params(const Agreement& agreement);
  void add_to_lane(LaneId id, const GroupParams& params, const Agreement& agreement, Lane& lane,
                   Nanos deadline, Nanos now);
  Status wait_for_probe(std::future<Status> probed, Nanos deadline,
                        const std::function<bool()>& interrupted);
  void settle_path();
  void describe();
  static void wait_for_stations(std::future<void> first, Nanos deadline,
                                const std::function<bool()>& interrupted);
  Status creation_timeout(Nanos deadline) const;
  void warn_of_ring() const;

  Status push(LaneId lane, Post post) override;
  Status push_message(MessagePost post) override;
  void fail_lanes(const Status& why) override;
  void close_lanes(Nanos deadline, bool force, Completion closed) override;
  bool has_lanes() const override;
  Status push_split(Post post);
  Status push_to_lane(LaneId lane, Post post);

  const Nanos creation_limit_;
  NetworkGroupParts parts_;  // (the lanes take the guards)
  uint64_t tag_ = 0;
  Agreed agreed_;  // as on the lanes: including the contributors and their racks
  // The split that the lanes' failure listeners fail, too. They do so under the mutex, and never
  // own it: its groups cannot be destroyed on a lane's thread.
  struct SplitHolder {
    std::mutex mutex;
    Split* split = nullptr;
  };
  std::shared_ptr<SplitHolder> holder_ = std::make_shared<SplitHolder>();
  std::unique_ptr<Split> split_;
};

}  // namespace mcast
