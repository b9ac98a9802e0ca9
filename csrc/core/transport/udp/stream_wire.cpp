// Fixed layouts, written and read byte by byte so that neither alignment nor the host's byte order
// matters. Decoding rejects anything unexpected before a value is used.
#include "transport/udp/stream_wire.h"

#include <algorithm>

#include "transport/udp/socket.h"

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

Status bad_endpoint(const StreamAddress& address) {
  return Status(Code::kInvalidArgument, "no list of addresses and ports: \"" + address.host + "\"");
}

}  // namespace

std::array<std::byte, kHelloSize> encode(const Hello& hello) noexcept {
  std::array<std::byte, kHelloSize> out{};
  put<uint32_t>(&out[0], kHelloMagic);
  put<uint16_t>(&out[4], kStreamVersion);
  put<uint8_t>(&out[6], static_cast<uint8_t>(hello.channel));
  put<uint8_t>(&out[7], static_cast<uint8_t>(hello.stripe | (hello.stripes - 1) << 4));
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
  const auto stripe = get<uint8_t>(&bytes[7]);
  const bool first_only = channel == static_cast<uint8_t>(Channel::kControl);
  if (get<uint32_t>(&bytes[0]) != kHelloMagic || get<uint16_t>(&bytes[4]) != kStreamVersion ||
      channel >= kChannels || (stripe >> 4) >= kMaxStripe ||
      (stripe & 15) > (first_only ? 0 : stripe >> 4) || get<uint16_t>(&bytes[30]) != 0) {
    return std::nullopt;
  }
  Hello hello;
  hello.channel = static_cast<Channel>(channel);
  hello.stripe = stripe & 15;
  hello.stripes = static_cast<uint8_t>((stripe >> 4) + 1);
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

std::optional<Hello> decode_guarded_hello(std::span<const std::byte, kHelloSize> bytes) noexcept {
  std::array<std::byte, kHelloSize> plain;
  std::copy(bytes.begin(), bytes.end(), plain.begin());
  put<uint16_t>(&plain[4], kStreamVersion);
  put<uint16_t>(&plain[30], 0);  // role, mode and suite
  return decode_hello(plain);
}

std::optional<HelloAck> decode_guarded_ack(
    std::span<const std::byte, kHelloAckSize> bytes) noexcept {
  std::array<std::byte, kHelloAckSize> plain;
  std::copy(bytes.begin(), bytes.end(), plain.begin());
  put<uint16_t>(&plain[4], kStreamVersion);
  return decode_hello_ack(plain);
}

std::array<std::byte, kFramePrefix> encode_prefix(uint32_t length) noexcept {
  std::array<std::byte, kFramePrefix> out{};
  put<uint32_t>(out.data(), length);
  return out;
}

uint32_t decode_prefix(const std::byte* bytes) noexcept { return get<uint32_t>(bytes); }

StreamAddress stripe_address(uint64_t uid, std::span<const sockaddr_in> endpoints) {
  StreamAddress address{uid, to_text(endpoints[0].sin_addr), ntohs(endpoints[0].sin_port)};
  for (const sockaddr_in& e : endpoints.subspan(1)) address.host += "+" + to_text(e);
  return address;
}

size_t stripe_count(const StreamAddress& address) noexcept {
  return 1 + static_cast<size_t>(std::count(address.host.begin(), address.host.end(), '+'));
}

Result<std::vector<sockaddr_in>> stripe_endpoints(const StreamAddress& address) {
  std::vector<sockaddr_in> out;
  for (size_t at = 0; at <= address.host.size();) {
    const size_t end = std::min(address.host.find('+', at), address.host.size());
    std::string host = address.host.substr(at, end - at);
    unsigned port = address.port;
    if (at > 0) {
      const size_t colon = host.find(':');
      port = 0;
      for (size_t i = colon == std::string::npos ? host.size() : colon + 1; i < host.size(); ++i) {
        if (host[i] < '0' || host[i] > '9' || port > 65535) return bad_endpoint(address);
        port = port * 10 + static_cast<unsigned>(host[i] - '0');
      }
      if (port == 0 || port > 65535) return bad_endpoint(address);
      host.resize(colon);
    }
    auto endpoint = parse_ipv4(host, static_cast<uint16_t>(port));
    if (!endpoint.ok()) return endpoint.status();
    out.push_back(*endpoint);
    at = end + 1;
  }
  return out;
}

std::string endpoint_text(const StreamAddress& address, size_t stripe) {
  auto endpoints = stripe_endpoints(address);
  if (!endpoints.ok() || stripe >= endpoints->size()) {
    return "peer " + address.host + ":" + std::to_string(address.port);
  }
  return "peer " + to_text((*endpoints)[stripe]);
}

}  // namespace mcast
