// CRC-32C (Castagnoli; RFC 3720 appendix B.4), the checksum of datagrams and bulk frames. Detects
// accidents, not attacks. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace mcast {

// Checksum of `data`. `seed` is the checksum of the bytes before it, so that parts may be given one
// after the other: crc32c(b, crc32c(a)) == crc32c(ab). crc32c("123456789") == 0xe3069283.
uint32_t crc32c(ConstBytes data, uint32_t seed = 0) noexcept;

}  // namespace mcast
