// The datagram: a fixed 32-byte little-endian header, then the payload. Length comes from the
// medium.
//
//   offset size field
//        0    4 checksum     CRC-32C of bytes 4.. to the end (header and payload in one pass)
//        4    2 magic        0x4d43 ("CM" in memory order)
//        6    1 version      high 4 bits: version (1); low 4 bits: type
//        7    1 flags        bit 0: lane (0 multicast, 1 reduce); bit 1: last chunk of the stream;
//                            bit 2: in order, of a small operation; others 0
//        8    8 group tag    random per group incarnation
//       16    4 sequence     op sequence number in (group, lane)
//       20    4 descriptor   hash of the op's description (wire/descriptor.h)
//       24    4 chunk        Data: chunk index; Position: chunks sent so far; else 0
//                            Position in order: 0; all small operations below `sequence` are sent
//       28    2 member       root of the stream (Data, Position) or sender (Abort, Probe)
//       30    2 reserved     stripe of the stream; 0
//
// Parsing is total: any bytes give a header or an error, and no field is trusted before verify().
#pragma once

#include "base/types.h"
#include "wire/bytes.h"

namespace mcast::wire {

inline constexpr size_t kDatagramHeader = 32;
inline constexpr uint16_t kDatagramMagic = 0x4d43;
inline constexpr uint8_t kDatagramVersion = 1;

enum class DatagramType : uint8_t { kData = 1, kPosition = 2, kAbort = 3, kProbe = 4 };
// "data", "position", "abort", "probe".
const char* datagram_type_name(DatagramType type) noexcept;

struct DatagramHeader {
  DatagramType type = DatagramType::kData;
  uint8_t lane = 0;
  bool last = false;  // Data: no chunk follows this one
  // Data: of a small operation; the member has sent all its small operations before this one.
  // Position: it has sent all its small operations below `sequence`.
  bool in_order = false;
  uint64_t group_tag = 0;
  Sequence sequence = 0;
  uint32_t descriptor = 0;
  Chunk chunk = 0;
  Member member = 0;
  uint16_t reserved = 0;
  bool operator==(const DatagramHeader&) const = default;
};

enum class ParseError : uint8_t { kNone, kTooShort, kMagic, kVersion, kType, kFlags, kChecksum };
const char* parse_error_name(ParseError error) noexcept;

// The reason why a datagram whose bytes 4 to 7 are `head` is refused.
ParseError refusal(uint32_t head) noexcept;

// Reads the header fields; kNone fills `header`. Does not check the checksum. Inline, like all code
// that runs for every chunk received.
inline ParseError parse_datagram(ConstBytes datagram, DatagramHeader& header) noexcept {
  if (datagram.size() < kDatagramHeader) return ParseError::kTooShort;
  const std::byte* const p = datagram.data();
  // Magic, version and the flags that must be 0 at once.
  const auto head = load<uint32_t>(p + 4);
  const uint32_t type = head >> 16 & 15;
  if ((head & 0xf8f0ffff) != (uint32_t{kDatagramVersion} << 20 | kDatagramMagic) ||
      type - 1 >= static_cast<uint32_t>(DatagramType::kProbe)) {
    return refusal(head);
  }
  header.type = static_cast<DatagramType>(type);
  header.lane = head >> 24 & 1;
  header.last = (head >> 25 & 1) != 0;
  header.in_order = (head >> 26 & 1) != 0;
  header.group_tag = load<uint64_t>(p + 8);
  header.sequence = load<uint32_t>(p + 16);
  header.descriptor = load<uint32_t>(p + 20);
  header.chunk = load<uint32_t>(p + 24);
  header.member = load<uint16_t>(p + 28);
  header.reserved = load<uint16_t>(p + 30);
  return ParseError::kNone;
}
// Returns true if the checksum is right. Requires datagram.size() >= kDatagramHeader.
bool verify_datagram(ConstBytes datagram) noexcept;

// Writes only the header of a datagram with this payload to `out`, checksum included; the payload
// may be anywhere. Requires out.size() >= kDatagramHeader.
void seal_datagram(Bytes out, const DatagramHeader& header, ConstBytes payload) noexcept;

// Copies the payload behind the header. Requires out.size() >= kDatagramHeader + payload.size().
void copy_payload(Bytes out, ConstBytes payload) noexcept;

// Both: writes header, payload and checksum to `out`; returns the datagram's size. A payload that
// is already at out + kDatagramHeader is not copied.
size_t write_datagram(Bytes out, const DatagramHeader& header, ConstBytes payload) noexcept;

}  // namespace mcast::wire
