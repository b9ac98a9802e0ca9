// Addresses as people write them: "10.0.0.9:7117", "agg1.example:7117", "[fd00::9]:7117", and lists
// of these, in which a rack may stand in front: "row3/10.0.0.9:7117". Pure.
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
  std::string rack{};  // where it is; empty: not told
  auto operator<=>(const NetAddress&) const = default;

  // As it is written.
  std::string text() const;
};

// Without a rack.
Result<NetAddress> parse_net_address(std::string_view text);
// One to kMostRackBytes letters, digits, '.', '-', '_'.
inline constexpr size_t kMostRackBytes = 64;
bool is_rack_name(std::string_view text);
// Separated by commas, blanks around them; none where there is no text. kInvalidArgument, and what
// is wrong: one that is none, one that is there twice, more than `most`.
Result<std::vector<NetAddress>> parse_net_addresses(std::string_view text, size_t most);

// "first-last", or one port: ports from 1 to 65535, both ends included.
struct PortRange {
  uint16_t first = 0;  // 0: no range, any port
  uint16_t last = 0;
  bool any() const noexcept { return first == 0; }
  size_t size() const noexcept { return size_t{last} - first + 1; }
};
// Blanks around it do no harm; no text is no range. False: it is none.
bool parse_port_range(std::string_view text, PortRange& out);

}  // namespace mcast
