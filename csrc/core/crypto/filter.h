// SipHash-1-3, as a filter before the costlier check of a tag: 32 of its bits are in the header of
// each guarded datagram (crypto/datagram_guard.h). A sender without the key gets one datagram in
// 2^32 past it. Only cost depends on it: datagrams that pass are still authenticated by the tag.
// Implemented inline here, since a call of libcrypto takes longer than the check it would save. Any
// thread.
#pragma once

#include <array>
#include <bit>

#include "base/types.h"
#include "crypto/key.h"
#include "wire/bytes.h"

namespace mcast::crypto {

inline constexpr size_t kFilterKeySize = 16;
using FilterKey = std::array<std::byte, kFilterKeySize>;

// SipHash with one round per word of eight bytes and three at the end (Aumasson, Bernstein 2012).
inline uint64_t siphash13(const FilterKey& key, ConstBytes bytes) noexcept {
  const uint64_t k0 = wire::load<uint64_t>(key.data()), k1 = wire::load<uint64_t>(key.data() + 8);
  uint64_t a = k0 ^ 0x736f6d6570736575, b = k1 ^ 0x646f72616e646f6d, c = k0 ^ 0x6c7967656e657261,
           d = k1 ^ 0x7465646279746573;
  const auto round = [&]() noexcept {
    a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
    c += d, d = std::rotl(d, 16) ^ c;
    a += d, d = std::rotl(d, 21) ^ a;
    c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
  };
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    const auto word = wire::load<uint64_t>(bytes.data() + i);
    d ^= word;
    round();
    a ^= word;
  }
  uint64_t last = static_cast<uint64_t>(bytes.size()) << 56;
  for (size_t i = whole; i < bytes.size(); ++i) {
    last |= std::to_integer<uint64_t>(bytes[i]) << (8 * (i - whole));
  }
  d ^= last;
  round();
  a ^= last;
  c ^= 0xff;
  round();
  round();
  round();
  return a ^ b ^ c ^ d;
}

}  // namespace mcast::crypto
