// File descriptors of this process: the number of open ones, and the limits. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace mcast {

struct DescriptorUse {
  uint64_t open = 0;                              // equals the limit if /proc is not available
  uint64_t soft = UINT64_MAX, hard = UINT64_MAX;  // RLIMIT_NOFILE; UINT64_MAX: none, or unknown
};
DescriptorUse descriptor_use();

// Raises the soft limit, to the hard one at most, so that `more` descriptors can be opened besides
// the open ones; never lowers it. Programs that use select() cannot have numbers above 1023, so it
// is raised only as far as needed. Returns true if it was raised.
bool make_descriptor_room(uint64_t more);

// For errors: the numbers, and where the limits are set.
std::string descriptor_text();

}  // namespace mcast
