// The datagram of a guarded group: version 2. It has no checksum; the tag at its end authenticates
// all of it, and the filter at its start rejects strangers' datagrams cheaply
// (crypto/datagram_guard.h makes and checks both).
//
//   offset size field
//        0    4 filter        low 32 bits of SipHash-1-3 over bytes 4..40
//        4    4 magic, version (2) and type, flags   as in version 1 (wire/datagram.h), and flag
//                             bit 3: the payload is encrypted
//        8   24 group tag, sequence, descriptor, chunk, member, reserved   as in version 1
//       32    8 packet number bits 0..39 counter, bits 40..63 epoch
//       40    n payload       ciphertext, or in clear
//     40+n   16 tag
//
// Parsing is total, and no field is trusted before the tag is verified.
#pragma once

#include "wire/datagram.h"

namespace mcast::wire {

inline constexpr uint8_t kGuardedVersion = 2;
inline constexpr size_t kGuardedHeader = 40;
inline constexpr size_t kDatagramTag = 16;
// Bytes more than a datagram of version 1 has.
inline constexpr size_t kGuardedExtra = kGuardedHeader + kDatagramTag - kDatagramHeader;

inline constexpr unsigned kCounterBits = 40;
constexpr uint64_t packet_number(uint32_t epoch, uint64_t counter) noexcept {
  return uint64_t{epoch} << kCounterBits | counter;
}
constexpr uint32_t epoch_of(uint64_t number) noexcept {
  return static_cast<uint32_t>(number >> kCounterBits);
}

struct GuardedHeader {
  DatagramHeader inner;
  bool sealed = false;
  uint32_t filter = 0;
  uint64_t number = 0;
  bool operator==(const GuardedHeader&) const = default;
};

// kVersion: also for datagrams of version 1. Does not check filter and tag.
inline ParseError parse_guarded(ConstBytes datagram, GuardedHeader& header) noexcept {
  if (datagram.size() < 8) return ParseError::kTooShort;
  const std::byte* const p = datagram.data();
  const auto head = load<uint32_t>(p + 4);
  if ((head & 0xffff) != kDatagramMagic) return ParseError::kMagic;
  // (A datagram of version 1 may be shorter, and must be reported as such.)
  if ((head >> 20 & 15) != kGuardedVersion) return ParseError::kVersion;
  if (datagram.size() < kGuardedHeader + kDatagramTag) return ParseError::kTooShort;
  const uint32_t type = head >> 16 & 15;
  if (type - 1 >= static_cast<uint32_t>(DatagramType::kProbe)) return ParseError::kType;
  if ((head >> 28) != 0) return ParseError::kFlags;
  DatagramHeader& inner = header.inner;
  inner.type = static_cast<DatagramType>(type);
  inner.lane = head >> 24 & 1;
  inner.last = (head >> 25 & 1) != 0;
  inner.in_order = (head >> 26 & 1) != 0;
  header.sealed = (head >> 27 & 1) != 0;
  inner.group_tag = load<uint64_t>(p + 8);
  inner.sequence = load<uint32_t>(p + 16);
  inner.descriptor = load<uint32_t>(p + 20);
  inner.chunk = load<uint32_t>(p + 24);
  inner.member = load<uint16_t>(p + 28);
  inner.reserved = load<uint16_t>(p + 30);
  header.number = load<uint64_t>(p + 32);
  header.filter = load<uint32_t>(p);
  return ParseError::kNone;
}

// The fields that both versions share, for observers (faults, counters); not verified.
inline bool peek_datagram(ConstBytes datagram, DatagramHeader& header) noexcept {
  if (parse_datagram(datagram, header) == ParseError::kNone) return true;
  GuardedHeader guarded;
  if (parse_guarded(datagram, guarded) != ParseError::kNone) return false;
  header = guarded.inner;
  return true;
}

// Writes the 40 bytes of the header.
inline void write_guarded(std::byte* p, const GuardedHeader& header) noexcept {
  const DatagramHeader& inner = header.inner;
  store<uint32_t>(p, header.filter);
  store<uint16_t>(p + 4, kDatagramMagic);
  store<uint8_t>(p + 6,
                 static_cast<uint8_t>(kGuardedVersion << 4 | static_cast<uint8_t>(inner.type)));
  store<uint8_t>(p + 7,
                 static_cast<uint8_t>((inner.lane & 1u) | (inner.last ? 2u : 0u) |
                                      (inner.in_order ? 4u : 0u) | (header.sealed ? 8u : 0u)));
  store<uint64_t>(p + 8, inner.group_tag);
  store<uint32_t>(p + 16, inner.sequence);
  store<uint32_t>(p + 20, inner.descriptor);
  store<uint32_t>(p + 24, inner.chunk);
  store<uint16_t>(p + 28, inner.member);
  store<uint16_t>(p + 30, inner.reserved);
  store<uint64_t>(p + 32, header.number);
}

}  // namespace mcast::wire
