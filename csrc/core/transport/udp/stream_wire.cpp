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
  return Status(Code::kInvalidArgument,
                "not a list of addresses and ports: \"" + address.host + "\"");
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
      (stripe & 15) > (first_only ? 0 : stripe >> 4) || get<uint32_t>(&bytes[24]) != 0 ||
      get<uint16_t>(&bytes[30]) != 0) {
    return std::nullopt;
  }
  Hello hello;
  hello.channel = static_cast<Channel>(channel);
  hello.stripe = stripe & 15;
  hello.stripes = static_cast<uint8_t>((stripe >> 4) + 1);
  hello.source = get<uint64_t>(&bytes[8]);
  hello.target = get<uint64_t>(&bytes[16]);
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

StreamAddress stripe_address(uint64_t uid, std::span<const Endpoint> endpoints) {
  StreamAddress address{uid, endpoints[0].address.text(), endpoints[0].port};
  for (const Endpoint& e : endpoints.subspan(1)) address.host += "+" + e.text();
  return address;
}

size_t stripe_count(const StreamAddress& address) noexcept {
  return 1 + static_cast<size_t>(std::count(address.host.begin(), address.host.end(), '+'));
}

Result<std::vector<Endpoint>> stripe_endpoints(const StreamAddress& address) {
  std::vector<Endpoint> out;
  const std::string_view all = address.host;
  for (size_t at = 0; at <= all.size();) {
    const size_t end = std::min(all.find('+', at), all.size());
    const std::string_view one = all.substr(at, end - at);
    if (at == 0) {
      const auto first = IpAddress::parse(one);
      if (!first) return bad_endpoint(address);
      out.push_back({*first, address.port});
    } else {
      const auto further = Endpoint::parse(one);
      if (!further) return bad_endpoint(address);
      out.push_back(*further);
    }
    at = end + 1;
  }
  return out;
}

std::string endpoint_text(const StreamAddress& address, size_t stripe) {
  auto endpoints = stripe_endpoints(address);
  if (!endpoints.ok() || stripe >= endpoints->size()) {
    return "peer " + address.host + ":" + std::to_string(address.port);
  }
  return "peer " + (*endpoints)[stripe].text();
}

}  // namespace mcast
