// Builds the report on request, from the state of the parts of the group.
#include "collective/aggregation_report.h"

#include "collective/group_core.h"

namespace mcast {

AggregationReport GroupCore::aggregation_report(Nanos now) const {
  AggregationReport report;
  for (const auto& [kind, planned] : stations_.planned()) {
    AggregationReport::Plan& plan = report.plans.emplace_back();
    plan.kind = kind;
    plan.sequence = planned.sequence;
    plan.bytes = planned.bytes;
    plan.placement = planned.placement;
    const StationTrial::Times times = stations_.times(kind, planned.bytes);
    plan.with = static_cast<uint64_t>(times.with);
    plan.without = static_cast<uint64_t>(times.without);
    for (const Station& s : planned.stations) {
      plan.stations.push_back({stations_.roster().address_of(s.member), s.capacity, s.out});
    }
  }
  report.waiting = stations_.stragglers().oldest(g_.ops.base(), now);
  report.partial = excuses_.report();
  return report;
}

}  // namespace mcast
