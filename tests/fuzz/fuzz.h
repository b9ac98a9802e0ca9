// Common parts of the targets: requirements, and an input that is consumed from its start.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/types.h"

namespace mcast::fuzz {

// Ends the program, which libFuzzer reports with the input that led here.
inline void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "required: %s\n", what);
  __builtin_trap();
}

// For targets whose input is a script: counts the messages that the code under attack receives, and
// prints the number at the end.
inline void handed() {
  static uint64_t count = 0;
  static const bool told =
      std::atexit([] {
        std::fprintf(stderr, "messages: %llu\n", static_cast<unsigned long long>(count));
      }) == 0;
  if (told) count++;
}

// Reads as zeros past its end.
class Input {
 public:
  explicit Input(ConstBytes bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }

 private:
  ConstBytes bytes_;
};

inline ConstBytes bytes_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}
inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline bool equal(ConstBytes a, ConstBytes b) {
  return std::string_view(reinterpret_cast<const char*>(a.data()), a.size()) ==
         std::string_view(reinterpret_cast<const char*>(b.data()), b.size());
}

}  // namespace mcast::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
