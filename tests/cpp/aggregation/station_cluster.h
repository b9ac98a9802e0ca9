// A cluster in virtual time whose groups can use stations, which are nodes of its network.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aggregation/member/stations.h"
#include "aggregation/station_node.h"
#include "support/program.h"

namespace mcast::test {

class StationCluster final : public Cluster {
 public:
  explicit StationCluster(const ClusterOptions& options);
  ~StationCluster() override;

  // Adds stations to group 0, in force from its operation `from` on, and returns the number of the
  // first. Capacities are in 1/65536 of a rank's link. The group's lane must be 1. `racks` has one
  // rack per station.
  size_t add_stations(const std::vector<uint32_t>& capacities, uint32_t version = 1,
                      Sequence from = 0, const std::vector<std::string>& racks = {});
  // As add_stations(), but some ranks learn of the set later, when `install` is called for them.
  size_t make_stations(const std::vector<uint32_t>& capacities, uint32_t version, Sequence from,
                       const std::vector<std::string>& racks = {});
  void install(Member r) { fold(r).use(set_, set_at_); }
  // A rank of group 0, as far as it knows stations.
  Stations& fold(Member r) { return *Stations::of(group(r).core().fold()); }
  StationNode& station(size_t j) { return *stations_[j]; }
  size_t stations() const { return stations_.size(); }
  void kill_station(size_t j) {
    net().kill(stations_[j]->endpoint());
    stopped_[j] = true;
  }
  bool stopped(size_t j) const { return stopped_[j]; }
  void stop_station(size_t j, bool stopped) { stopped_[j] = stopped; }

 private:
  Nanos nodes_deadline() const override;
  bool poll_nodes() override;

  const bool guarded_;
  std::vector<std::unique_ptr<StationNode>> stations_;
  std::vector<bool> stopped_;
  StationSet set_;  // the latest set
  std::vector<StreamAddress> set_at_;
};

}  // namespace mcast::test
