// GroupStats as text, between an engine of the host and its client. A reader skips fields that it
// does not know, and counters are identified by name, so versions may differ.
#pragma once

#include <string>

#include "runtime/group.h"

namespace mcast {

// At most `most` bytes: fields that do not fit are left out, repairs by rank first.
std::string encode_stats(const GroupStats& stats, size_t most = SIZE_MAX);
// Fields that the text lacks keep their values in `stats`.
void read_stats(const std::string& text, GroupStats& stats);

}  // namespace mcast
