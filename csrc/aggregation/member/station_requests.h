// StationRequests: gets stations for one group. Rank 0 has its aggregators asked, and each rank's
// reduce lane agrees on the admitted stations.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "aggregation/member/registrar.h"
#include "runtime/aggregation.h"

namespace mcast {

class StationRequests final : public GroupFold {
 public:
  // `registrar` outlives the group. The other arguments are as in Aggregation::join().
  StationRequests(Registrar& registrar, const GroupSpec& spec, const Agreement& agreement,
                  const std::shared_ptr<LaneDriver>& reduce,
                  std::shared_ptr<const crypto::JobSecret> secret, bool hosts_fold);

  void opened(GroupCore& core) override;
  void begin(const Agreement& agreement, std::function<void()> first) override;
  void leave() override { registrar_.leave(tag_); }
  std::vector<AggregatorStats> stats() const override { return registrar_.stats(tag_); }

 private:
  // Set by the reduce lane.
  struct FirstRoster {
    std::mutex mutex;
    bool there = false;
    std::function<void()> told;
  };

  void ask(const Agreement& agreement);

  Registrar& registrar_;
  const uint64_t tag_;
  const std::string name_;  // of the group
  const Config config_;
  const bool asks_;  // this is rank 0
  const std::weak_ptr<LaneDriver> reduce_;
  const std::shared_ptr<const crypto::JobSecret> secret_;
  const bool hosts_fold_;
  const std::shared_ptr<FirstRoster> first_roster_ = std::make_shared<FirstRoster>();
};

}  // namespace mcast
