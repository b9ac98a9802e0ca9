// Addresses as people write them: "10.0.0.9:7117", "agg1.example:7117", "[fd00::9]:7117", and lists
// of these, with an optional rack before each: "row3/10.0.0.9:7117". Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace mcast {

struct NetAddress {
  std::string host;    // a name or a number, without brackets
  uint16_t port = 0;   // from 1 on
  std::string rack{};  // its rack; empty: not given
  auto operator<=>(const NetAddress&) const = default;

  // Formats it as parse_net_addresses() reads it.
  std::string text() const;
};

// Parses an address without a rack.
Result<NetAddress> parse_net_address(std::string_view text);
// One to kMostRackBytes letters, digits, '.', '-', '_'.
inline constexpr size_t kMostRackBytes = 64;
bool is_rack_name(std::string_view text);
// Addresses separated by commas, with blanks around them; an empty text gives none.
// kInvalidArgument, with the reason: an invalid address, a duplicate, more than `most`.
Result<std::vector<NetAddress>> parse_net_addresses(std::string_view text, size_t most);

// "first-last", or one port: ports from 1 to 65535, both ends included.
struct PortRange {
  uint16_t first = 0;  // 0: no range, any port
  uint16_t last = 0;
  bool any() const noexcept { return first == 0; }
  size_t size() const noexcept { return size_t{last} - first + 1; }
};
// Ignores blanks around it; an empty text gives no range. Returns false if the text is invalid.
bool parse_port_range(std::string_view text, PortRange& out);

}  // namespace mcast
