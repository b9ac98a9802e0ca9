// The list of segments that a station folds of an operation, by the same deal that the ranks
// compute.
#pragma once

#include <memory>
#include <span>

#include "aggregation/fold/operation.h"
#include "aggregation/plan/station_deal.h"
#include "base/status.h"

namespace mcast {

// Makes the list for station `index` of `stations`; the list names stations by their member
// numbers. `room`: most bytes that it may take. The other arguments are as in deal_out(). The error
// says why the station folds nothing. If the operation is so long that the list would exceed
// `room`, nothing is allocated and an error is returned, too.
Result<std::unique_ptr<const aggregation::WorkList>> make_station_list(
    const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
    std::span<const Station> stations, uint16_t index, size_t room);

}  // namespace mcast
