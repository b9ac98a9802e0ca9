// The port follows the last colon; a host that contains colons is written in brackets.
#include "base/net_address.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "base/units.h"

namespace mcast {
namespace {

bool in_host(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::string NetAddress::text() const {
  const bool number = host.find(':') != std::string::npos;
  return (rack.empty() ? "" : rack + "/") + (number ? "[" + host + "]" : host) + ":" +
         std::to_string(port);
}

Result<NetAddress> parse_net_address(std::string_view text) {
  const auto refuse = [text](const char* why) {
    return Status(Code::kInvalidArgument, "\"" + std::string(text) + "\" " + why);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse("has no port: it must be host:port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool good = !host.empty() && host.size() <= 255 &&
                    std::all_of(host.begin(), host.end(), [bracketed](char c) {
                      return in_host(c) || (bracketed && c == ':');
                    });
  if (!good) return refuse("has no host: it must be host:port");
  NetAddress out{std::string(host), 0, ""};
  if (!read_number(port, out.port) || out.port == 0) return refuse("has no port from 1 to 65535");
  return out;
}

bool is_rack_name(std::string_view text) {
  return !text.empty() && text.size() <= kMostRackBytes &&
         std::all_of(text.begin(), text.end(), in_host);
}

Result<std::vector<NetAddress>> parse_net_addresses(std::string_view text, size_t most) {
  std::vector<NetAddress> all;
  text = without_blanks(text);
  if (text.empty()) return all;
  for (const std::string_view part : split_at_commas(text)) {
    std::string_view word = without_blanks(part);
    std::string rack;
    if (const size_t slash = word.find('/'); slash != std::string_view::npos) {
      rack = word.substr(0, slash);
      word.remove_prefix(slash + 1);
      if (!is_rack_name(rack)) {
        return Status(Code::kInvalidArgument, "\"" + rack + "\" is not a rack name");
      }
    }
    Result<NetAddress> one = parse_net_address(word);
    if (!one.ok()) return one.status();
    one->rack = std::move(rack);
    const auto same = [&one](const NetAddress& other) {
      return other.host == one->host && other.port == one->port;
    };
    if (std::any_of(all.begin(), all.end(), same)) {
      return Status(Code::kInvalidArgument, one->text() + " is listed twice");
    }
    if (all.size() == most) {
      return Status(Code::kInvalidArgument, "more than " + std::to_string(most) + " addresses");
    }
    all.push_back(std::move(one).value());
  }
  return all;
}

bool parse_port_range(std::string_view text, PortRange& out) {
  text = without_blanks(text);
  out = {};
  if (text.empty()) return true;
  const size_t dash = text.find('-');
  PortRange range;
  if (!read_number(text.substr(0, dash), range.first)) return false;
  range.last = range.first;
  if (dash != std::string_view::npos && !read_number(text.substr(dash + 1), range.last))
    return false;
  if (range.first == 0 || range.last < range.first) return false;
  out = range;
  return true;
}

}  // namespace mcast
