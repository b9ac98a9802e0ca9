// What tells stations apart where segments are dealt out and it does not matter who is next: a
// number of a station's host and its place among that host's stations in the roster. Ranks and
// stations compute it alike, and it is the same again after a restart. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "wire/aggregation.h"

namespace mcast::wire {

// By station of the roster.
std::vector<uint64_t> station_hashes(const StationRoster& roster);

}  // namespace mcast::wire
