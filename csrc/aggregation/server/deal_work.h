// Computes the deal that ranks make of an operation, as one of their stations does.
#pragma once

#include "aggregation/server/station_planner.h"
#include "collective/plan.h"

namespace mcast::service {

// Depends on the ask and the roster alone, and uses the ranks' code.
DealWork deal_work();

// Returns the part of a group's agreement that determines the plans of its reductions.
Agreed agreed_of(const wire::Ask& ask);

}  // namespace mcast::service
