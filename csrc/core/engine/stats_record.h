// GroupStats as text, between an engine of the host and its client. A reader passes over what it
// does not know, and counters are told by name, so versions may differ.
#pragma once

#include <string>

#include "engine/group.h"

namespace mcast {

std::string encode_stats(const GroupStats& stats);
// What the text does not say stays as it is in `stats`. `group` of `aggregation` is not told.
void read_stats(const std::string& text, GroupStats& stats);

}  // namespace mcast
