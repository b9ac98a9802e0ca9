// What is said where a group is closed with operations in flight.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace mcast {

struct LeftInFlight {
  Status here;        // for the one who closes: kAborted, or kTimeout when it has waited
  Status for_others;  // to the other ranks: kClosed, with the rank's name
};

// `operations`: in flight; 0: all are over here, not confirmed. `force`: after an error or an
// interrupt, nothing in flight was waited for.
LeftInFlight left_in_flight(Member self, size_t operations, bool force);

}  // namespace mcast
