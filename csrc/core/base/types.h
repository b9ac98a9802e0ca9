// Units and small basic types shared by every layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mcast {

// Monotonic time or a duration, nanoseconds. Below engine/ it is always an argument: no layer there
// reads a clock.
using Nanos = int64_t;
inline constexpr Nanos kMicro = 1'000;
inline constexpr Nanos kMilli = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
// "No deadline."
inline constexpr Nanos kNever = INT64_MAX;

// Durations given by users in milliseconds may exceed 64 bits of nanoseconds (292 years): those
// mean no limit.
constexpr Nanos nanos_of_ms(int64_t ms) noexcept {
  return ms > kNever / kMilli ? kNever : ms * kMilli;
}
// `span` >= 0 after `now`, at most kNever.
constexpr Nanos later(Nanos now, Nanos span) noexcept {
  return span > kNever - now ? kNever : now + span;
}

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// Endpoint of a group, 0 <= member < size. Ranks come first.
using Member = uint16_t;
inline constexpr Member kNoMember = 0xffff;

// Position of an op in its (group, lane) sequence; starts at 0 and never wraps (2^32 ops).
using Sequence = uint32_t;

// Index of a chunk inside one root's stream.
using Chunk = uint32_t;

// Half-open run of chunks.
struct ChunkRange {
  Chunk first = 0;
  Chunk end = 0;
  Chunk size() const noexcept { return end - first; }
  bool operator==(const ChunkRange&) const = default;
};

}  // namespace mcast
