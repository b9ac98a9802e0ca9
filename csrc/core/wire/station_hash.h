// Identifies stations for breaking ties when segments are assigned: a hash of a station's host and
// its index among that host's stations in the roster. Ranks and stations compute the same value,
// also after a restart. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "wire/aggregation.h"

namespace mcast::wire {

// One hash per station of the roster.
std::vector<uint64_t> station_hashes(const StationRoster& roster);

}  // namespace mcast::wire
