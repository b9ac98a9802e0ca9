// Parameters with which a station admits a job, and the bounds of its memory. Pure.
#pragma once

#include <cstdint>

#include "base/fold_order.h"
#include "base/types.h"
#include "protocol/hosts.h"
#include "protocol/racks.h"
#include "transport/transport.h"

namespace mcast::aggregation {

struct JobParams {
  uint32_t id = 0;   // number of the job in its process
  uint64_t tag = 0;  // of the group
  Member self = 0;   // the station's member number: not less than the number of ranks
  Hosts hosts{1};    // the ranks; one contribution comes from each host
  Racks racks;       // of the hosts
  FoldOrder fold = FoldOrder::kRank;
  size_t segment = 0;  // longest segment, bytes
  size_t incast = 0;   // setting, bytes
  Nanos deadline = 0;  // silence after which a segment's missing contributors are reported

  // Returns false for another station of a tree.
  bool is_rank(Member from) const { return from < hosts.members(); }
};

// No result is sent to an owner while this much is queued for it, nor to any while this much is
// queued for all.
inline constexpr size_t kMostQueued = 128 << 10;
inline constexpr size_t kMostQueuedToAll = 4 << 20;
// Work lists of open operations; an operation without room for its list is declined. 2 bytes for
// each segment of the vector, in a tree up to 26: enough for 60 GiB in flight on 8 hosts, 4 GiB in
// a tree.
inline constexpr size_t kMostLists = 2 << 20;

// Most segments of the list that may be granted and not sent as results.
uint32_t station_lookahead(const JobParams& params);

// Upper bound of a job's memory, whatever its ranks do: early contributions and accumulators (of
// two segments, for 16-bit floats, and one for each rack) of the window, results at the transport,
// work lists, records. Admission reserves this many bytes.
size_t memory_bound(const JobParams& params);

}  // namespace mcast::aggregation
