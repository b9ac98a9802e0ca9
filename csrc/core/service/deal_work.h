// The deal that ranks make of an operation, as a station of theirs makes it.
#pragma once

#include "service/station_planner.h"

namespace mcast::service {

// From the ask and the roster alone, by the code that the ranks use.
DealWork deal_work();

}  // namespace mcast::service
