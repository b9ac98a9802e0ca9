// GroupStats as text, between an engine of the host and its client. A reader passes over what it
// does not know, and counters are told by name, so versions may differ.
#pragma once

#include <string>

#include "engine/group.h"

namespace mcast {

// At most `most` bytes: what finds no room is left out, repairs by rank first.
std::string encode_stats(const GroupStats& stats, size_t most = SIZE_MAX);
// What the text does not say stays as it is in `stats`.
void read_stats(const std::string& text, GroupStats& stats);

}  // namespace mcast
