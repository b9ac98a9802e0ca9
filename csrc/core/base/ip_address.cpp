// Numeric addresses only: a name would have to be looked up, and could change its meaning. Bits
// beyond the prefix are refused, since 10.1.0.9/24 is ambiguous. inet_pton() and inet_ntop() know
// the forms of IPv6 (RFC 5952); IPv4 is read by hand, because a text like 10.1 or 010.1.0.1 must
// not become another address.
#include "base/ip_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "base/units.h"

namespace mcast {
namespace {

constexpr size_t kMapped = 96;  // bits before the IPv4 address in the mapped form
constexpr size_t kLongest = 45;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::optional<IpAddress> read_v4(std::string_view text) {
  uint32_t address = 0;
  for (int i = 0; i < 4; i++) {
    const size_t end = i < 3 ? text.find('.') : text.size();
    uint8_t byte = 0;
    if (end == std::string_view::npos || !read_number(text.substr(0, end), byte)) return {};
    address = address << 8 | byte;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return IpAddress::v4(address);
}

}  // namespace

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  if (text.find(':') == std::string_view::npos) return read_v4(text);
  if (text.size() > kLongest || text.find('\0') != std::string_view::npos) return {};
  IpAddress out;
  const std::string copy(text);
  if (::inet_pton(AF_INET6, copy.c_str(), out.bytes.data()) != 1 || !out.known()) return {};
  return out;
}

bool IpAddress::is_v4() const {
  static constexpr std::array<uint8_t, 12> kPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), bytes.begin());
}

uint32_t IpAddress::v4() const {
  uint32_t host_order = 0;
  for (size_t i = 12; i < 16; i++) host_order = host_order << 8 | bytes[i];
  return host_order;
}

bool IpAddress::loopback() const {
  IpAddress one;
  one.bytes[15] = 1;
  return is_v4() ? bytes[12] == 127 : *this == one;
}

bool IpAddress::link_local() const {
  return is_v4() ? bytes[12] == 169 && bytes[13] == 254
                 : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

std::string IpAddress::text() const {
  if (!known()) return "";
  char text[INET6_ADDRSTRLEN] = "";
  const bool four = is_v4();
  ::inet_ntop(four ? AF_INET : AF_INET6, bytes.data() + (four ? kMapped / 8 : 0), text,
              sizeof text);
  return text;
}

uint64_t hash_of(const IpAddress& address, uint64_t seed) {
  uint64_t halves[2];
  std::memcpy(halves, address.bytes.data(), sizeof halves);
  return mix64(halves[0] ^ mix64(halves[1] ^ seed));
}

std::string Endpoint::text() const {
  const std::string host = address.text();
  return (address.is_v4() ? host : "[" + host + "]") + ":" + std::to_string(port);
}

std::optional<Endpoint> Endpoint::parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return {};
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const auto address = IpAddress::parse(host);
  Endpoint out;
  if (!address || address->is_v4() == bracketed || !read_number(text.substr(colon + 1), out.port) ||
      out.port == 0) {
    return {};
  }
  out.address = *address;
  return out;
}

IpNetwork IpNetwork::around(const IpAddress& address, uint32_t prefix) {
  IpNetwork network{address, prefix};
  const IpAddress mask = network.mask();
  for (size_t i = 0; i < 16; i++) network.address.bytes[i] &= mask.bytes[i];
  return network;
}

IpAddress IpNetwork::mask() const {
  IpAddress mask;
  const size_t bits = prefix + (address.is_v4() ? kMapped : 0);
  for (size_t i = 0; i < 16; i++) {
    const size_t here = std::min<size_t>(bits - std::min(bits, 8 * i), 8);
    mask.bytes[i] = static_cast<uint8_t>(0xff00 >> here);
  }
  return mask;
}

bool IpNetwork::contains(const IpAddress& host) const {
  return host.known() && host.is_v4() == address.is_v4() && around(host, prefix).address == address;
}

std::string IpNetwork::text() const {
  const bool single = prefix == (address.is_v4() ? 32 : 128);
  const std::string host = address.known() ? address.text() : "::";
  return host + (single ? "" : "/" + std::to_string(prefix));
}

Result<std::vector<IpNetwork>> parse_networks(std::string_view text, size_t most) {
  std::vector<IpNetwork> all;
  text = trimmed(text);
  if (text.empty()) return all;
  for (const std::string_view part : split_at_commas(text)) {
    const std::string_view word = trimmed(part);
    const auto refuse = [word](const std::string& why) {
      return Status(Code::kInvalidArgument, "\"" + std::string(word) + "\" " + why);
    };
    const size_t slash = word.find('/');
    const std::string_view host = word.substr(0, slash);
    // The one address that parse() refuses; as a network it is all of IPv6.
    const auto address = host == "::" ? std::optional(IpAddress()) : IpAddress::parse(host);
    if (!address) return refuse("is not an IPv4 or IPv6 network");
    IpNetwork one = IpNetwork::single(*address);
    const uint32_t most_bits = one.prefix;
    if (slash != std::string_view::npos &&
        (!read_number(word.substr(slash + 1), one.prefix) || one.prefix > most_bits)) {
      return refuse("has no prefix length from 0 to " + std::to_string(most_bits));
    }
    if (IpNetwork::around(one.address, one.prefix) != one) {
      return refuse("has bits set beyond its prefix length");
    }
    if (all.size() == most) {
      return Status(Code::kInvalidArgument, "more than " + std::to_string(most) + " networks");
    }
    all.push_back(one);
  }
  return all;
}

}  // namespace mcast
