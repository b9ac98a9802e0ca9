// A copy for data that will not be read again soon.
#pragma once

#include <cstddef>

namespace mcast {

// memcpy past the caches: the destination is written without being read first and does not push
// other data out. Visible to other threads like any other store when this returns. For pieces of a
// transfer that is larger than the caches: the next reader finds it in memory.
void streaming_copy(std::byte* to, const std::byte* from, size_t size) noexcept;

}  // namespace mcast
