// Lists, numbers, sizes and rates as people write them. Locale-independent; any thread.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace mcast {

// The parts between commas; of an empty text one, which is empty.
std::vector<std::string_view> split_at_commas(std::string_view text);

// Exactly one decimal number, at most `most`.
template <typename T>
bool read_number(std::string_view text, T& out, uint64_t most = std::numeric_limits<T>::max()) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out <= most;
}

// Exactly one number such as "2.5" or "1e3". strtod and std::stod depend on setlocale(): in some
// locales "2.5" ends at the point.
bool read_decimal(std::string_view text, double& out);
// With `decimals` decimals; without them, as many as are needed to read the same number again.
std::string decimal_text(double value);
std::string decimal_text(double value, int decimals);

// "32768", "32K", "32 k": a whole number, suffix K, M or G (2^10, 2^20, 2^30). Returns false if the
// form is wrong, or the value exceeds 64 bits.
bool parse_size(std::string_view text, uint64_t& out);
// "512M", "1536": whole multiples with the suffix.
std::string size_text(uint64_t bytes);

// Bits per second: "100gbit", "2.5gbit", "300 mbit", "800kbit", "1000" (10^3, 10^6, 10^9, as in
// tc). Returns false if the form is wrong, or the value is below 1 or beyond 10^15.
bool parse_rate(std::string_view text, uint64_t& out);

}  // namespace mcast
