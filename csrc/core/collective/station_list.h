// What a station folds of an operation, by the deal that the ranks make of it too.
#pragma once

#include <memory>
#include <span>

#include "aggregation/operation.h"
#include "base/status.h"
#include "collective/station_deal.h"

namespace mcast {

// For station `index` of `stations`, which the list names by their member numbers; `room`: bytes
// that it may take; the other arguments as in deal_out(). A failure says why it folds nothing: also
// where the operation is so long that the list would take more, of which nothing is made then.
Result<std::unique_ptr<const aggregation::WorkList>> make_station_list(
    const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
    std::span<const Station> stations, uint16_t index, size_t room);

}  // namespace mcast
