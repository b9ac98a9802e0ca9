// CRC-32C by Intel ISA-L, which selects the fastest kernel for the CPU at run time (crc32
// instructions, carry-less multiplication, vectors). ISA-L works on the bare register: this file
// makes the inversions before and after that the standard requires, which also lets checksums
// chain. Its length is an int, so longer inputs are split. If the build machine has no ISA-L
// (cmake/Libraries.cmake), Google's crc32c is used, with the same instructions.
#include "base/checksum.h"

#ifdef MCAST_CRC32C
#include <crc32c/crc32c.h>
#else
#include <isa-l/crc.h>
#endif

#include <algorithm>

namespace mcast {

#ifdef MCAST_CRC32C

uint32_t crc32c(ConstBytes data, uint32_t seed) noexcept {
  return ::crc32c::Extend(seed, reinterpret_cast<const uint8_t*>(data.data()), data.size());
}

#else

uint32_t crc32c(ConstBytes data, uint32_t seed) noexcept {
  constexpr size_t kMaxPiece = size_t{1} << 30;
  // ISA-L's prototype lacks const; it only reads.
  auto* at = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(data.data()));
  uint32_t state = ~seed;
  for (size_t left = data.size(); left > 0;) {
    const size_t piece = std::min(left, kMaxPiece);
    state = crc32_iscsi(at, static_cast<int>(piece), state);
    at += piece;
    left -= piece;
  }
  return ~state;
}

#endif

}  // namespace mcast
