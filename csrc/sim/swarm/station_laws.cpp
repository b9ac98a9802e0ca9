// Stations fold for others and own nothing: everything that they store belongs to a group that
// still uses it. The law of blame checks that no operation fails because of an aggregator's fate;
// the law of bytes checks that results are right.
#include "sim/swarm/case.h"

namespace mcast::sim {

namespace {

std::string aggregator_name(size_t i) { return "aggregator " + std::to_string(i) + ": "; }

// Each frame is received where it was sent. Does not check runs in which an aggregator, a
// connection or a rank may be lost, and groups that end early, whose goodbyes may be under way.
void stations_in_balance(const Case& c) {
  const bool disturbed =
      !c.causes.harmless() || !c.run.over ||
      std::any_of(c.plan.faults.begin(), c.plan.faults.end(),
                  [](const PlannedFault& f) { return is_of_aggregator(f.what); }) ||
      std::any_of(c.plan.groups.begin(), c.plan.groups.end(),
                  [](const PlannedGroup& group) { return group.early != 0; });
  if (disturbed || c.plan.aggregators.empty()) return;
  uint64_t sent = 0, received = c.run.count(FaultKind::kForget);
  for (const GroupEnd& group : c.run.groups) {
    if (group.total(Counter::agg_lost) > 0) return;
    sent += group.total(Counter::frames_sent);
    received += group.total(Counter::frames_received);
  }
  for (const AggregatorEnd& one : c.run.aggregators) {
    sent += one.given;
    received += one.taken;
  }
  if (sent != received) {
    c.broken("balance", "frames sent by ranks and stations: " + std::to_string(sent) +
                            ", received: " + std::to_string(received));
  }
}

}  // namespace

// Stations never exceed their quota; no peer breaks the protocol; and when all groups are gone
// nothing is left.
void station_laws(const Case& c) {
  for (size_t i = 0; i < c.run.aggregators.size(); i++) {
    const AggregatorEnd& one = c.run.aggregators[i];
    const std::string who = aggregator_name(i);
    if (one.overdrawn > 0) {
      c.broken("memory", who + std::to_string(one.overdrawn) + " bytes reserved beyond its quota");
    }
    if (one.malformed > 0) {
      c.broken("agreement", who + std::to_string(one.malformed) + " frames broke the protocol");
    }
    const uint64_t again = one.counters[static_cast<size_t>(Counter::agg_repeated)];
    if (again > 0 && !has(c.plan, FaultKind::kAggRepeat)) {
      c.broken("agreement", who + std::to_string(again) + " frames came twice");
    }
    if (!one.runs || !c.run.still) continue;
    if (one.jobs > 0 || one.reserved > 0) {
      c.broken("quiet", who + std::to_string(one.jobs) + " jobs and " +
                            std::to_string(one.reserved) + " bytes when all groups are gone");
    }
  }
  for (const GroupEnd& group : c.run.groups) {
    if (const uint64_t count = group.total(Counter::agg_malformed); count > 0) {
      c.broken("agreement", std::to_string(count) + " frames of stations broke the protocol");
    }
  }
  stations_in_balance(c);
}

}  // namespace mcast::sim
