// Networks as people write them: "10.1.0.0/24", or a single address. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace mcast {

// IPv4; in host byte order.
struct Ipv4Network {
  uint32_t address = 0;  // no bit beyond the prefix is set
  uint32_t prefix = 32;  // 0 to 32 bits
  bool operator==(const Ipv4Network&) const = default;

  uint32_t mask() const { return prefix == 0 ? 0 : ~uint32_t{0} << (32 - prefix); }
  bool contains(uint32_t host) const { return (host & mask()) == address; }
  // Formats it as parse_networks() reads it; a single address has no prefix.
  std::string text() const;
};

// "10.1.0.9"; `address` in host byte order.
std::string ipv4_text(uint32_t address);

// Networks separated by commas, with blanks around them; an empty text gives none.
// kInvalidArgument, with the reason: an invalid network, bits beyond its prefix, more than `most`.
Result<std::vector<Ipv4Network>> parse_networks(std::string_view text, size_t most);

}  // namespace mcast
