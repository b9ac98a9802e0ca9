// IP addresses of both versions, with a port (Endpoint) or a prefix (IpNetwork), and networks as
// people write them: "10.1.0.0/24", "fd00:1::/64", or a single address. Only socket_address.h
// converts them for system calls. Pure.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace mcast {

// IPv4 addresses are kept IPv4-mapped (::ffff:0:0/96, RFC 4291), as a dual-stack socket reports
// them: code that compares, sorts or masks addresses does not depend on the version, and IPv4
// addresses sort before those of IPv6 that are in use.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};  // in network order; all zero: no address

  static constexpr IpAddress v4(uint32_t host_order) {
    IpAddress a;
    a.bytes[10] = a.bytes[11] = 0xff;
    for (size_t i = 0; i < 4; i++)
      a.bytes[12 + i] = static_cast<uint8_t>(host_order >> (24 - 8 * i));
    return a;
  }
  // Numeric only, without brackets or a scope.
  static std::optional<IpAddress> parse(std::string_view text);

  auto operator<=>(const IpAddress&) const = default;
  bool known() const { return *this != IpAddress{}; }
  bool is_v4() const;
  bool is_v6() const { return known() && !is_v4(); }
  uint32_t v4() const;  // in host byte order; only if is_v4()
  bool loopback() const;
  // Assigned by the host itself and valid on one link only (RFC 3927; fe80::/10).
  bool link_local() const;
  // Size of the IP header of its packets, without options.
  size_t header_bytes() const { return is_v4() ? 20 : 40; }
  std::string text() const;  // "10.1.0.9", "fd00::9"; "" if there is no address
};

// The address as `seed`ed hash, for tables that an outsider must not be able to aim at.
uint64_t hash_of(const IpAddress& address, uint64_t seed);

// An address with a port.
struct Endpoint {
  IpAddress address{};
  uint16_t port = 0;
  auto operator<=>(const Endpoint&) const = default;
  std::string text() const;  // "10.1.0.9:80", "[fd00::9]:80"
  // Reads what text() writes. The port may not be 0.
  static std::optional<Endpoint> parse(std::string_view text);
};

struct IpNetwork {
  IpAddress address{};   // no bit beyond the prefix is set
  uint32_t prefix = 32;  // bits, as written: 0 to 32 for IPv4, to 128 for IPv6
  bool operator==(const IpNetwork&) const = default;

  static IpNetwork single(const IpAddress& address) {
    return {address, address.is_v4() ? 32u : 128u};
  }
  // The network of `prefix` bits that the address is in.
  static IpNetwork around(const IpAddress& address, uint32_t prefix);
  IpAddress mask() const;  // of IPv4: ones in the first 96 bits
  bool contains(const IpAddress& host) const;
  // Formats it as parse_networks() reads it; a single address has no prefix.
  std::string text() const;
};

// Networks separated by commas, with blanks around them; an empty text gives none.
// kInvalidArgument, with the reason: an invalid network, bits beyond its prefix, more than `most`.
Result<std::vector<IpNetwork>> parse_networks(std::string_view text, size_t most);

}  // namespace mcast
