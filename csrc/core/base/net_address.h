// Addresses as people write them: "10.0.0.9:7117", "agg1.example:7117", "[fd00::9]:7117", and lists
// of these, in which a rack may stand in front: "row3/10.0.0.9:7117". Pure.
#pragma once

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

}  // namespace mcast
