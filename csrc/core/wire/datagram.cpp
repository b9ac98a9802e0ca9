// The checksum comes first in the header so that one pass over the rest of the datagram covers
// header and payload. If the payload is copied, that happens right before, so that the pass reads
// it from the nearest cache. If it stays in the caller's memory (a transport gathers it from
// there), the pass continues over it. The first pass over the caller's memory prefetches it a few
// kilobytes ahead: chunk-sized pieces are too short for the hardware prefetcher to start (1.3 times
// the goodput at 1408 bytes; see docs/decisions.md).
#include "wire/datagram.h"

#include <cstring>

#include "base/checksum.h"
#include "wire/bytes.h"

namespace mcast::wire {
namespace {

constexpr size_t kPrefetchAhead = 4096;
constexpr size_t kPrefetchBelow = 8192;  // longer payloads prefetch well by themselves

void prefetch_behind(ConstBytes payload) noexcept {
  if (payload.size() >= kPrefetchBelow) return;
  const auto from = reinterpret_cast<uintptr_t>(payload.data()) + kPrefetchAhead;
  // May run past the end of the caller's memory: a prefetch never faults.
  for (size_t i = 0; i < payload.size(); i += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(from + i));
  }
}

}  // namespace

const char* datagram_type_name(DatagramType type) noexcept {
  switch (type) {
    case DatagramType::kData:
      return "data";
    case DatagramType::kPosition:
      return "position";
    case DatagramType::kAbort:
      return "abort";
    case DatagramType::kProbe:
      return "probe";
  }
  return "unknown";
}

const char* parse_error_name(ParseError error) noexcept {
  switch (error) {
    case ParseError::kNone:
      return "none";
    case ParseError::kTooShort:
      return "too short";
    case ParseError::kMagic:
      return "magic";
    case ParseError::kVersion:
      return "version";
    case ParseError::kType:
      return "type";
    case ParseError::kFlags:
      return "flags";
    case ParseError::kChecksum:
      return "checksum";
  }
  return "unknown";
}

ParseError refusal(uint32_t head) noexcept {
  if ((head & 0xffff) != kDatagramMagic) return ParseError::kMagic;
  if ((head >> 20 & 15) != kDatagramVersion) return ParseError::kVersion;
  const uint32_t type = head >> 16 & 15;
  const bool known = type >= static_cast<uint32_t>(DatagramType::kData) &&
                     type <= static_cast<uint32_t>(DatagramType::kProbe);
  return known ? ParseError::kFlags : ParseError::kType;
}

bool verify_datagram(ConstBytes datagram) noexcept {
  return load<uint32_t>(datagram.data()) == crc32c(datagram.subspan(4));
}

void seal_datagram(Bytes out, const DatagramHeader& header, ConstBytes payload) noexcept {
  std::byte* p = out.data();
  store<uint16_t>(p + 4, kDatagramMagic);
  store<uint8_t>(p + 6,
                 static_cast<uint8_t>(kDatagramVersion << 4 | static_cast<uint8_t>(header.type)));
  store<uint8_t>(p + 7, static_cast<uint8_t>((header.lane & 1u) | (header.last ? 2u : 0u) |
                                             (header.in_order ? 4u : 0u)));
  store<uint64_t>(p + 8, header.group_tag);
  store<uint32_t>(p + 16, header.sequence);
  store<uint32_t>(p + 20, header.descriptor);
  store<uint32_t>(p + 24, header.chunk);
  store<uint16_t>(p + 28, header.member);
  store<uint16_t>(p + 30, header.reserved);
  ConstBytes rest(p + 4, kDatagramHeader - 4);
  if (payload.data() == p + kDatagramHeader) {
    rest = {rest.data(), rest.size() + payload.size()};
    payload = {};
  }
  uint32_t checksum = crc32c(rest);
  if (!payload.empty()) {
    prefetch_behind(payload);
    checksum = crc32c(payload, checksum);
  }
  store<uint32_t>(p, checksum);
}

void copy_payload(Bytes out, ConstBytes payload) noexcept {
  if (payload.empty()) return;
  prefetch_behind(payload);
  std::memcpy(out.data() + kDatagramHeader, payload.data(), payload.size());
}

size_t write_datagram(Bytes out, const DatagramHeader& header, ConstBytes payload) noexcept {
  const std::byte* const place = out.data() + kDatagramHeader;
  if (payload.data() != place) copy_payload(out, payload);
  seal_datagram(out, header, {place, payload.size()});
  return kDatagramHeader + payload.size();
}

}  // namespace mcast::wire
