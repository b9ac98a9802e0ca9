// Numeric addresses only: a name would have to be looked up, and could change its meaning. Bits
// beyond the prefix are refused, since 10.1.0.9/24 is ambiguous.
#include "base/ipv4_network.h"

#include <algorithm>

#include "base/units.h"

namespace mcast {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool read_ipv4(std::string_view text, uint32_t& address) {
  address = 0;
  for (int i = 0; i < 4; i++) {
    const size_t end = i < 3 ? text.find('.') : text.size();
    uint8_t byte = 0;
    if (end == std::string_view::npos || !read_number(text.substr(0, end), byte)) return false;
    address = address << 8 | byte;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

}  // namespace

std::string ipv4_text(uint32_t address) {
  return std::to_string(address >> 24) + "." + std::to_string(address >> 16 & 255) + "." +
         std::to_string(address >> 8 & 255) + "." + std::to_string(address & 255);
}

std::string Ipv4Network::text() const {
  return ipv4_text(address) + (prefix == 32 ? "" : "/" + std::to_string(prefix));
}

Result<std::vector<Ipv4Network>> parse_networks(std::string_view text, size_t most) {
  std::vector<Ipv4Network> all;
  text = trimmed(text);
  if (text.empty()) return all;
  for (const std::string_view part : split_at_commas(text)) {
    const std::string_view word = trimmed(part);
    const auto refuse = [word](const char* why) {
      return Status(Code::kInvalidArgument, "\"" + std::string(word) + "\" " + why);
    };
    const size_t slash = word.find('/');
    Ipv4Network one;
    if (!read_ipv4(word.substr(0, slash), one.address)) return refuse("is no IPv4 network");
    if (slash != std::string_view::npos &&
        (!read_number(word.substr(slash + 1), one.prefix) || one.prefix > 32)) {
      return refuse("has no prefix from 0 to 32");
    }
    if (!one.contains(one.address)) return refuse("has bits beyond its prefix");
    if (all.size() == most) {
      return Status(Code::kInvalidArgument, "more than " + std::to_string(most) + " networks");
    }
    all.push_back(one);
  }
  return all;
}

}  // namespace mcast
