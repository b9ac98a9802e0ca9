// Bytes of a test, written in hexadecimal.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcast::crypto {

// Blanks are skipped.
inline std::vector<std::byte> unhex(std::string_view text) {
  std::vector<std::byte> out;
  unsigned high = 16;
  for (const char c : text) {
    if (c == ' ' || c == '\n') continue;
    const unsigned digit =
        c <= '9' ? static_cast<unsigned>(c - '0') : static_cast<unsigned>(c - 'a' + 10);
    EXPECT_LT(digit, 16u) << c;
    if (high == 16) {
      high = digit;
    } else {
      out.push_back(static_cast<std::byte>(high << 4 | digit));
      high = 16;
    }
  }
  return out;
}

inline std::string hex(ConstBytes bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    out += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4];
    out += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

template <size_t N>
std::array<std::byte, N> array_of(ConstBytes bytes) {
  std::array<std::byte, N> out{};
  EXPECT_EQ(bytes.size(), N);
  std::copy_n(bytes.begin(), std::min(N, bytes.size()), out.begin());
  return out;
}

}  // namespace mcast::crypto
