// Bytes as hexadecimal digits. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/types.h"

namespace mcast {

inline std::string hex_text(ConstBytes bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<unsigned>(b) >> 4];
    text += kDigits[static_cast<unsigned>(b) & 15];
  }
  return text;
}

// -1: not a digit.
constexpr int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Returns false if the text does not have exactly as many bytes as `out`.
inline bool from_hex(std::string_view text, Bytes out) {
  if (text.size() != 2 * out.size()) return false;
  for (size_t i = 0; i < out.size(); i++) {
    const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

}  // namespace mcast
