// Status texts for a group that is closed while operations are in flight.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace mcast {

struct LeftInFlight {
  Status here;        // for the caller that closes: kAborted, or kTimeout if it waited
  Status for_others;  // for the other ranks: kClosed, with this rank's name
};

// `operations`: number in flight. 0: all are complete here but not yet confirmed by all ranks.
// `force`: the group is closed after an error or an interrupt, without waiting for them.
LeftInFlight left_in_flight(Member self, size_t operations, bool force);

}  // namespace mcast
