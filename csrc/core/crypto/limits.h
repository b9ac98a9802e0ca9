// How long a key lives. Tests lower all of it. What the numbers rest on: docs/security.md.
#pragma once

#include "base/types.h"

namespace mcast::crypto {

// Of who seals. Records of streams follow the same limits on both sides.
struct EpochLimits {
  uint64_t packets = uint64_t{1} << 28;  // under one key; at most 2^40
  uint64_t blocks = uint64_t{1} << 34;   // of 16 bytes
  uint32_t epochs = 1u << 24;            // in all; at most 2^24
  Nanos age = 3600 * kSecond;            // of an epoch; in streams the sealer's matters
};

// Of who opens.
struct OpenLimits {
  uint32_t ahead = 64;                    // epochs that a sender may have gone on unheard
  Nanos previous = 60 * kSecond;          // for which the epoch before is still opened
  uint64_t failures = uint64_t{1} << 35;  // of one sender's keys, before they are worn out
};

// What one packet counts for.
constexpr uint64_t blocks_of(size_t bytes) noexcept { return bytes / 16 + 2; }

}  // namespace mcast::crypto
