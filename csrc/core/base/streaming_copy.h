// A copy for data that will not be read again soon.
#pragma once

#include <cstddef>
#include <cstring>

namespace mcast {

// memcpy past the caches: the destination is written without being read first and does not evict
// other data. This thread sees the result; others see it after streaming_fence(). For pieces of a
// transfer that is larger than the caches: the next reader finds it in memory.
void streaming_copy(std::byte* to, const std::byte* from, size_t size) noexcept;
// The same for data that is in no cache. The CPU's prefetcher stops at the end of a page, and a
// page of small memory also needs a page walk: this function prefetches across it. (For data in a
// cache it takes 2 % longer.)
void streaming_copy_from_memory(std::byte* to, const std::byte* from, size_t size) noexcept;

// Orders the streaming copies of this thread before its later release stores. Required before the
// data is announced to others, once for many copies.
void streaming_fence() noexcept;

// Transfers of at least this many bytes in all are treated as larger than the caches.
inline constexpr size_t kStreamingFrom = 4u << 20;

// Copies a piece of a result of `whole` bytes, with the suitable copy. Needs the fence as above.
inline void copy_result(std::byte* to, const std::byte* from, size_t size, size_t whole) noexcept {
  if (whole >= kStreamingFrom) {
    streaming_copy(to, from, size);
  } else if (size > 0) {
    std::memcpy(to, from, size);
  }
}

}  // namespace mcast
