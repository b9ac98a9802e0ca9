// Format of the bytes on a reliable connection. Pure functions over bytes; integers are
// little-endian.
//
//   Hello (private data of the connect request, 32 bytes):
//     "MCSV" version:u16 entries:u16 source:u64 target:u64 listen address:4 bytes listen port:u16
//     zero:u16
//   Refusal (private data of a reject): "MCSV" reason:u8
//   message: kind:u8 flags:u8 credits:u16 length:u32, then a piece of a frame
//
// On guarded endpoints the Hello has version 2 and only claims who wants to connect; the four
// messages of crypto/handshake.h prove it. The Challenge is the private data of the accept, the
// others are sent as messages of their own, without a header; this Hello, with the fields that they
// set at its end, is the head of theirs. From then on each message is a record
// (crypto/stream_guard.h) of the message without a guard, header included; so credits, channels and
// goodbyes are authenticated, too.
//
// A frame is sent in pieces that fill a message of kEntry bytes; `length` in its first piece is
// that of the whole frame. Pieces of one channel follow each other; channels may alternate.
// `credits`: number of receives that the sender has posted again since it last reported them.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/types.h"
#include "transport/transport.h"
#include "transport/udp/stream_wire.h"

namespace mcast::verbs {

inline constexpr uint16_t kVersion = 1;
inline constexpr size_t kHello = 32;
inline constexpr size_t kMessageHeader = 8;
inline constexpr size_t kEntry = 8192;  // maximum number of bytes of one message
// Messages that the peer may send in advance. Two more receives are for messages that only return
// credits, of which at most two are in flight (they are sent when half of kCredits is owed).
inline constexpr uint16_t kCredits = 16;
inline constexpr size_t kReceives = kCredits + 2;

struct Hello {
  uint16_t entries = kCredits;
  uint64_t source = 0;         // uid of the connector
  uint64_t target = 0;         // uid the connector wants to reach
  IpAddress listen_address{};  // of IPv4
  uint16_t listen_port = 0;

  // Returns true if the connector wants endpoint `uid`.
  bool is_for(uint64_t uid) const { return target == uid && source != uid; }
};

enum class Refusal : uint8_t {
  kYield = 1,     // the connection that the refusing side opened is used
  kStranger = 2,  // no such process here, or another version
  kLater = 3,     // guarded endpoints: too many connections are half open
};

enum class Kind : uint8_t { kData = 0, kCredit = 1, kGoodbye = 2 };

struct Message {
  Kind kind = Kind::kData;
  Channel channel = Channel::kControl;
  bool first = false;
  uint16_t credits = 0;
  uint32_t length = 0;
};

namespace detail {
template <typename T>
void put(std::byte*& at, T value) {
  for (size_t i = 0; i < sizeof value; ++i) *at++ = static_cast<std::byte>(value >> (8 * i));
}
template <typename T>
T get(const std::byte*& at) {
  T value = 0;
  for (size_t i = 0; i < sizeof value; ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(*at++) << (8 * i)));
  }
  return value;
}
inline constexpr uint32_t kMagic = 0x5653434d;  // "MCSV"
}  // namespace detail

inline std::array<std::byte, kHello> encode(const Hello& h, uint16_t version = kVersion) noexcept {
  std::array<std::byte, kHello> out{};
  std::byte* at = out.data();
  detail::put(at, detail::kMagic);
  detail::put(at, version);
  detail::put(at, h.entries);
  detail::put(at, h.source);
  detail::put(at, h.target);
  std::memcpy(at, h.listen_address.bytes.data() + 12, 4);
  at += 4;
  detail::put(at, h.listen_port);
  return out;
}

// Returns an empty optional if magic, version or credits are wrong. Private data may be padded at
// its end.
inline std::optional<Hello> decode_hello(ConstBytes bytes, uint16_t version = kVersion) noexcept {
  if (bytes.size() < kHello) return std::nullopt;
  const std::byte* at = bytes.data();
  if (detail::get<uint32_t>(at) != detail::kMagic) return std::nullopt;
  if (detail::get<uint16_t>(at) != version) return std::nullopt;
  Hello h;
  h.entries = detail::get<uint16_t>(at);
  h.source = detail::get<uint64_t>(at);
  h.target = detail::get<uint64_t>(at);
  h.listen_address = IpAddress::v4(0);
  std::memcpy(h.listen_address.bytes.data() + 12, at, 4);
  at += 4;
  h.listen_port = detail::get<uint16_t>(at);
  if (h.entries != kCredits) return std::nullopt;
  return h;
}

inline std::array<std::byte, 5> encode(Refusal reason) noexcept {
  std::array<std::byte, 5> out{};
  std::byte* at = out.data();
  detail::put(at, detail::kMagic);
  detail::put(at, static_cast<uint8_t>(reason));
  return out;
}

inline std::optional<Refusal> decode_refusal(ConstBytes bytes) noexcept {
  if (bytes.size() < 5) return std::nullopt;
  const std::byte* at = bytes.data();
  if (detail::get<uint32_t>(at) != detail::kMagic) return std::nullopt;
  const auto reason = detail::get<uint8_t>(at);
  if (reason < 1 || reason > 3) return std::nullopt;
  return static_cast<Refusal>(reason);
}

inline void write_message(std::byte* out, const Message& m) noexcept {
  detail::put(out, static_cast<uint8_t>(m.kind));
  detail::put(out, static_cast<uint8_t>(static_cast<uint8_t>(m.channel) | (m.first ? 0x80 : 0)));
  detail::put(out, m.credits);
  detail::put(out, m.length);
}

// Returns an empty optional unless every field has a value that write_message() produces.
inline std::optional<Message> parse_message(ConstBytes bytes) noexcept {
  if (bytes.size() < kMessageHeader) return std::nullopt;
  const std::byte* at = bytes.data();
  const auto kind = detail::get<uint8_t>(at);
  const auto flags = detail::get<uint8_t>(at);
  Message m;
  m.credits = detail::get<uint16_t>(at);
  m.length = detail::get<uint32_t>(at);
  if (kind > static_cast<uint8_t>(Kind::kGoodbye) || (flags & 0x7f) >= kChannels) {
    return std::nullopt;
  }
  m.kind = static_cast<Kind>(kind);
  m.channel = static_cast<Channel>(flags & 0x7f);
  m.first = (flags & 0x80) != 0;
  if (m.kind != Kind::kData && bytes.size() != kMessageHeader) return std::nullopt;
  return m;
}

}  // namespace mcast::verbs
