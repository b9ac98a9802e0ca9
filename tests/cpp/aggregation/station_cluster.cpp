// Stations are polled after the lanes of the ranks. A station that has closed, or has sent its last
// frame, is killed.
#include "aggregation/station_cluster.h"

#include <algorithm>

#include "base/rng.h"
#include "support/reach.h"

namespace mcast::test {
namespace {

ClusterOptions with_fold(ClusterOptions options) {
  options.group.fold = &Stations::make;
  return options;
}

}  // namespace

StationCluster::StationCluster(const ClusterOptions& options)
    : Cluster(with_fold(options)), guarded_(options.security != crypto::Mode::kOff) {}

StationCluster::~StationCluster() {
  for (const auto& station : stations_) add_reach(station->counters());
}

size_t StationCluster::make_stations(const std::vector<uint32_t>& capacities, uint32_t version,
                                     Sequence from, const std::vector<std::string>& racks) {
  const size_t first = stations_.size();
  set_ = {version, from, false, {}};
  set_at_.clear();
  for (size_t j = 0; j < capacities.size(); j++) {
    const auto number = static_cast<Member>(size() + first + j);
    set_.stations.push_back(
        {number, capacities[j], mix64(number), j < racks.size() ? racks[j] : "", false});
  }
  for (uint16_t j = 0; j < capacities.size(); j++) {
    stations_.push_back(std::make_unique<StationNode>(attach(crypto::Role::kAggregator, 1),
                                                      group(0).core().params(), version,
                                                      set_.stations, j, now()));
    stopped_.push_back(false);
    set_at_.push_back(stations_.back()->address());
    if (!guarded_) continue;
    for (Member r = 0; r < size(); r++) {
      stations_.back()->meet(lane(r).transport().stream().address(false));
    }
    // The stations of a tree connect to each other.
    for (size_t other = first; other + 1 < stations_.size(); other++) {
      stations_[other]->meet(stations_.back()->address());
      stations_.back()->meet(stations_[other]->address());
    }
  }
  return first;
}

size_t StationCluster::add_stations(const std::vector<uint32_t>& capacities, uint32_t version,
                                    Sequence from, const std::vector<std::string>& racks) {
  const size_t first = make_stations(capacities, version, from, racks);
  for (Member r = 0; r < size(); r++) install(r);
  return first;
}

Nanos StationCluster::nodes_deadline() const {
  Nanos next = kNever;
  for (size_t j = 0; j < stations_.size(); j++) {
    if (!stopped_[j]) next = std::min(next, std::max(now(), stations_[j]->deadline()));
  }
  return next;
}

bool StationCluster::poll_nodes() {
  bool more = false;
  for (size_t j = 0; j < stations_.size(); j++) {
    if (stopped_[j]) continue;
    more = stations_[j]->poll(now()) || more;
    if (stations_[j]->spent() || stations_[j]->station().closed()) kill_station(j);
  }
  return more;
}

}  // namespace mcast::test
