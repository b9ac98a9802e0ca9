// A number, then the unit: the rest of the text, trimmed and in lower case.
#include "base/units.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

namespace mcast {
namespace {

std::string unit_after(const char* rest, std::string_view text) {
  std::string unit;
  for (const char* c = rest; c != text.data() + text.size(); ++c) {
    const auto letter = static_cast<unsigned char>(*c);
    if (std::isspace(letter) == 0) unit += static_cast<char>(std::tolower(letter));
  }
  return unit;
}

}  // namespace

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

bool read_decimal(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

std::string decimal_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string decimal_text(double value, int decimals) {
  char text[400];  // the largest double has 309 digits before the point
  return {text,
          std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, decimals).ptr};
}

bool parse_size(std::string_view text, uint64_t& out) {
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  const std::string unit = unit_after(rest, text);
  unsigned shift = 0;
  if (unit == "k") {
    shift = 10;
  } else if (unit == "m") {
    shift = 20;
  } else if (unit == "g") {
    shift = 30;
  } else if (!unit.empty()) {
    return false;
  }
  if (value > std::numeric_limits<uint64_t>::max() >> shift) return false;
  out = value << shift;
  return true;
}

std::string size_text(uint64_t bytes) {
  static constexpr std::string_view kUnits = " KMG";
  size_t unit = 0;
  while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    unit++;
  }
  return std::to_string(bytes) + (unit == 0 ? "" : std::string(1, kUnits[unit]));
}

bool parse_rate(std::string_view text, uint64_t& out) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  const std::string unit = unit_after(rest, text);
  if (unit == "kbit") {
    value *= 1e3;
  } else if (unit == "mbit") {
    value *= 1e6;
  } else if (unit == "gbit") {
    value *= 1e9;
  } else if (!unit.empty() && unit != "bit") {
    return false;
  }
  if (!(value >= 1 && value <= 1e15)) return false;
  out = static_cast<uint64_t>(std::llround(value));
  return true;
}

}  // namespace mcast
