// What a run of many plans has covered: which kinds of trouble happened, and which of them happened
// together in a plan whose calls all ended.
// Threads: one.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "service/report.h"
#include "simulation/swarm/runner.h"

namespace mcast::sim {

// What is no group's to tell: of all lanes, of an aggregator's stations.
void note_lanes(World& world, RunEnd& run);
void note_packets(World& world, RunEnd& run);
void note_stations(const service::Report& report, AggregatorEnd& end);
// What the group's operations have sent, and may have sent to who took nothing.
void note_plans(const Plan& plan, size_t g, const Agreed& agreed, GroupEnd& end);

// Bytes that a member keeps of what came early, beyond its setting.
size_t overstaged(World& world, World::GroupId group, Member member);

class Reach {
 public:
  void add(const RunEnd& run);
  // "cut+replay": never in one plan that ended.
  std::vector<std::string> missing_pairs() const;
  // Counters that stayed at 0, and points of base/reach.h that this process never came to, but for
  // those that no plan can: of these, which it did come to.
  std::vector<std::string> silent_counters() const;
  std::vector<std::string> silent_points() const;
  std::vector<std::string> refuted() const;

 private:
  std::array<uint64_t, kCounterCount> counters_{};
  std::array<std::array<bool, kFaultKinds>, kFaultKinds> together_{};
};

}  // namespace mcast::sim
