// Fixed layouts, written and read byte by byte so that neither alignment nor the host's byte order
// matters. Decoding rejects anything unexpected before a value is used.
#include "transport/udp/stream_wire.h"

namespace mcast {
namespace {

constexpr uint32_t kHelloMagic = 0x5453434d;     // "MCST"
constexpr uint32_t kHelloAckMagic = 0x4153434d;  // "MCSA"

template <typename T>
void put(std::byte* at, T value) noexcept {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T get(const std::byte* at) noexcept {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(std::to_integer<uint8_t>(at[i])) << (8 * i)));
  }
  return value;
}

}  // namespace

std::array<std::byte, kHelloSize> encode(const Hello& hello) noexcept {
  std::array<std::byte, kHelloSize> out{};
  put<uint32_t>(&out[0], kHelloMagic);
  put<uint16_t>(&out[4], kStreamVersion);
  put<uint8_t>(&out[6], static_cast<uint8_t>(hello.channel));
  put<uint64_t>(&out[8], hello.source);
  put<uint64_t>(&out[16], hello.target);
  std::memcpy(&out[24], &hello.listen_address, 4);
  put<uint16_t>(&out[28], hello.listen_port);
  return out;
}

std::array<std::byte, kHelloAckSize> encode(const HelloAck& ack) noexcept {
  std::array<std::byte, kHelloAckSize> out{};
  put<uint32_t>(&out[0], kHelloAckMagic);
  put<uint16_t>(&out[4], kStreamVersion);
  put<uint8_t>(&out[6], static_cast<uint8_t>(ack.verdict));
  put<uint8_t>(&out[7], static_cast<uint8_t>(ack.channel));
  put<uint64_t>(&out[8], ack.uid);
  return out;
}

std::optional<Hello> decode_hello(std::span<const std::byte, kHelloSize> bytes) noexcept {
  const auto channel = get<uint8_t>(&bytes[6]);
  if (get<uint32_t>(&bytes[0]) != kHelloMagic || get<uint16_t>(&bytes[4]) != kStreamVersion ||
      channel >= kChannels || get<uint8_t>(&bytes[7]) != 0 || get<uint16_t>(&bytes[30]) != 0) {
    return std::nullopt;
  }
  Hello hello;
  hello.channel = static_cast<Channel>(channel);
  hello.source = get<uint64_t>(&bytes[8]);
  hello.target = get<uint64_t>(&bytes[16]);
  std::memcpy(&hello.listen_address, &bytes[24], 4);
  hello.listen_port = get<uint16_t>(&bytes[28]);
  return hello;
}

std::optional<HelloAck> decode_hello_ack(std::span<const std::byte, kHelloAckSize> bytes) noexcept {
  const auto verdict = get<uint8_t>(&bytes[6]);
  const auto channel = get<uint8_t>(&bytes[7]);
  if (get<uint32_t>(&bytes[0]) != kHelloAckMagic || get<uint16_t>(&bytes[4]) != kStreamVersion ||
      verdict > static_cast<uint8_t>(Verdict::kYield) || channel >= kChannels) {
    return std::nullopt;
  }
  return HelloAck{static_cast<Verdict>(verdict), static_cast<Channel>(channel),
                  get<uint64_t>(&bytes[8])};
}

std::array<std::byte, kFramePrefix> encode_prefix(uint32_t length) noexcept {
  std::array<std::byte, kFramePrefix> out{};
  put<uint32_t>(out.data(), length);
  return out;
}

uint32_t decode_prefix(const std::byte* bytes) noexcept { return get<uint32_t>(bytes); }

}  // namespace mcast
