// Whole vectors are written with non-temporal stores, from the first aligned address of the
// destination on; the rest at both ends with memcpy. The fence is separate: it waits until all
// stores have reached memory, which for a chunk of 1.4 KB takes as long as the copy and its
// checksum.
#include "base/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/streaming_copy.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mcast {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kAhead = 4096, kLine = 64;

template <bool kFromMemory>
HWY_INLINE void Copy(uint8_t* to, const uint8_t* from, size_t size) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d), step = std::max(kLine, lanes);
  const size_t head = std::min(size, (lanes - reinterpret_cast<uintptr_t>(to) % lanes) % lanes);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; kFromMemory && i + kAhead + step <= size; i += step) {
    hwy::Prefetch(from + i + kAhead);
    for (size_t j = 0; j < step; j += lanes) hn::Stream(hn::LoadU(d, from + i + j), d, to + i + j);
  }
  for (; i + lanes <= size; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  std::memcpy(to + i, from + i, size - i);
}

void StreamingCopy(uint8_t* to, const uint8_t* from, size_t size) { Copy<false>(to, from, size); }

void StreamingCopyFromMemory(uint8_t* to, const uint8_t* from, size_t size) {
  Copy<true>(to, from, size);
}

}  // namespace HWY_NAMESPACE
}  // namespace mcast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcast {

HWY_EXPORT(StreamingCopy);
HWY_EXPORT(StreamingCopyFromMemory);

void streaming_copy(std::byte* to, const std::byte* from, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(StreamingCopy)
  (reinterpret_cast<uint8_t*>(to), reinterpret_cast<const uint8_t*>(from), size);
}

void streaming_copy_from_memory(std::byte* to, const std::byte* from, size_t size) noexcept {
  HWY_DYNAMIC_DISPATCH(StreamingCopyFromMemory)
  (reinterpret_cast<uint8_t*>(to), reinterpret_cast<const uint8_t*>(from), size);
}

void streaming_fence() noexcept { hwy::FlushStream(); }

}  // namespace mcast
#endif
