// Writes JSON as it is built: objects and lists are opened, values follow, and they are closed.
// Texts may contain any bytes; they are escaped, and bytes that are not printable ASCII become "?".
// Threads: one.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/units.h"

namespace mcast {

class Json {
 public:
  Json& open(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  Json& key(const char* name) {
    value(std::string_view(name));
    text_ += ':';
    first_ = true;  // no comma before the value
    return *this;
  }
  void value(std::string_view text) {
    separate();
    text_ += '"';
    for (const char c : text) put(c);
    text_ += '"';
  }
  void value(bool flag) { raw(flag ? "true" : "false"); }
  void value(uint64_t number) { raw(std::to_string(number)); }
  // Three decimals.
  void value(double number) { raw(decimal_text(std::isfinite(number) ? number : 0.0, 3)); }
  template <typename T>
  Json& field(const char* name, const T& what) {
    key(name);
    if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
      value(what);
    } else if constexpr (std::is_integral_v<T>) {
      value(static_cast<uint64_t>(what));
    } else {
      value(std::string_view(what));
    }
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  void separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  void raw(std::string_view token) {
    separate();
    text_ += token;
  }
  void put(char c) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else {
      text_ += c >= 0x20 && c < 0x7f ? c : '?';
    }
  }

  std::string text_;
  bool first_ = true;
};

}  // namespace mcast
