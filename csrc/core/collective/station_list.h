// What a station folds of an operation, by the deal that the ranks make of it too.
#pragma once

#include <memory>
#include <span>

#include "aggregation/operation.h"
#include "base/status.h"
#include "collective/station_deal.h"

namespace mcast {

// For station `index` of `stations`, which the list names by their member numbers; the other
// arguments as in deal_out(). A failure says why it folds nothing.
Result<std::unique_ptr<const aggregation::WorkList>> make_station_list(
    const wire::Descriptor& descriptor, const Agreed& agreed, uint64_t tag,
    std::span<const Station> stations, uint16_t index);

}  // namespace mcast
