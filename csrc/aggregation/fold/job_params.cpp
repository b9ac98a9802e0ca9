// The window is twice the value of `incast` that an owner is allowed, shared by the contributors:
// grants, contributions and results wait behind multicast and behind contributions to other
// stations, and a rank that is ahead has no data to send while it waits for a slower one. At least
// two segments, so that one can be folded while the next arrives.
#include "aggregation/fold/job_params.h"

#include <algorithm>

#include "base/reduce_kernels.h"

namespace mcast::aggregation {

uint32_t station_lookahead(const JobParams& params) {
  return static_cast<uint32_t>(
      std::clamp<size_t>(2 * params.incast / (params.hosts.count() * params.segment), 2, 16));
}

size_t memory_bound(const JobParams& params) {
  constexpr size_t kRecords = 512 << 10, kRecordsOfARank = 512;
  const size_t accumulators = kStationRatio * std::max<size_t>(1, params.racks.count());
  const size_t window =
      station_lookahead(params) * params.segment * (params.hosts.count() + accumulators);
  const size_t ranks = params.hosts.members();
  // Leaves of a tree send to other stations, however few ranks there are.
  const size_t receivers = params.racks.flat() ? ranks : kMostQueuedToAll / kMostQueued;
  const size_t queues = receivers * (kMostQueued + kMaxBulkFrame);
  return window + std::min(queues, kMostQueuedToAll) + kMostLists + kRecords +
         ranks * kRecordsOfARank;
}

}  // namespace mcast::aggregation
