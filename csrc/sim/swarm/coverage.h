// Coverage of a run of many plans: the kinds of faults that happened, and the pairs of them that
// happened together in a plan whose calls all ended.
// Threads: one.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "aggregation/server/report.h"
#include "sim/swarm/runner.h"

namespace mcast::sim {

// Notes values that belong to no group: counters of all lanes and of an aggregator's stations.
void note_lanes(World& world, RunEnd& run);
void note_packets(World& world, RunEnd& run);
void note_stations(const service::Report& report, AggregatorEnd& end);
// Notes what the group's operations have sent, and the chunks that may have been sent to a rank
// that consumed none.
void note_plans(const Plan& plan, size_t g, const Agreed& agreed, GroupEnd& end);

// Bytes that a member stages beyond its setting.
size_t overstaged(World& world, World::GroupId group, Member member);

class Coverage {
 public:
  void add(const RunEnd& run);
  // Pairs such as "cut+replay" that did not happen in one plan that ended.
  std::vector<std::string> missing_pairs() const;
  // Counters that stayed at 0 and points of base/coverage.h that this process never reached, except
  // those that no plan can reach; also exceptions that were reached after all.
  std::vector<std::string> silent_counters() const;
  std::vector<std::string> silent_points() const;
  std::vector<std::string> refuted() const;

 private:
  std::array<uint64_t, kCounterCount> counters_{};
  std::array<std::array<bool, kFaultKinds>, kFaultKinds> together_{};
};

}  // namespace mcast::sim
