// File descriptors of this process: how many are open, how many may be. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace mcast {

struct DescriptorUse {
  uint64_t open = 0;                              // as many as the limit where /proc does not tell
  uint64_t soft = UINT64_MAX, hard = UINT64_MAX;  // RLIMIT_NOFILE; UINT64_MAX: none, or not told
};
DescriptorUse descriptor_use();

// Raises the soft limit, to the hard one at most, so that `more` can be opened besides those that
// are; never lowers it. Programs that use select() cannot have numbers above 1023, so no more is
// asked for than is needed. True: it was raised.
bool make_descriptor_room(uint64_t more);

// For errors: the numbers, and where they are set.
std::string descriptor_text();

}  // namespace mcast
