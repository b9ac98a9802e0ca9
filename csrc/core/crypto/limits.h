// Lifetime of a key. Tests lower all limits. docs/security.md gives the reasons for the numbers.
#pragma once

#include "base/types.h"

namespace mcast::crypto {

// Limits for sealing. Records of streams follow the same limits on both sides.
struct EpochLimits {
  uint64_t packets = uint64_t{1} << 28;  // under one key; at most 2^40
  uint64_t blocks = uint64_t{1} << 34;   // of 16 bytes
  uint32_t epochs = 1u << 24;            // in all; at most 2^24
  Nanos age = 3600 * kSecond;            // of an epoch; in streams the sealer's counts
};

// Limits for opening.
struct OpenLimits {
  uint32_t ahead = 64;                    // epochs that a sender may have advanced unheard
  Nanos previous = 60 * kSecond;          // time during which the previous epoch is still opened
  uint64_t failures = uint64_t{1} << 35;  // of one sender's keys, before they are worn out
};

// Blocks counted for one packet.
constexpr uint64_t blocks_of(size_t bytes) noexcept { return bytes / 16 + 2; }

}  // namespace mcast::crypto
