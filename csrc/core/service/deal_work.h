// The deal that ranks make of an operation, as a station of theirs makes it.
#pragma once

#include "collective/plan.h"
#include "service/station_planner.h"

namespace mcast::service {

// From the ask and the roster alone, by the code that the ranks use.
DealWork deal_work();

// Of what a group has agreed on, that which its reductions are planned by.
Agreed agreed_of(const wire::Ask& ask);

}  // namespace mcast::service
