// Secret bytes and the small types around them. A Key is wiped when destroyed, and cannot be copied
// by accident; its owner decides where it is stored (crypto/arena.h has pages for that). Not
// thread-safe.
#pragma once

#include <string.h>

#include <array>
#include <cstddef>
#include <span>

#include "base/types.h"

namespace mcast::crypto {

inline constexpr size_t kKeySize = 32;
using Digest = std::array<std::byte, 32>;  // of SHA-256

// Overwrites memory; the compiler cannot leave it out.
inline void wipe(Bytes bytes) noexcept { ::explicit_bzero(bytes.data(), bytes.size()); }

class Key {
 public:
  Key() noexcept = default;  // zeros
  explicit Key(std::span<const std::byte, kKeySize> bytes) noexcept { assign(bytes); }
  Key(Key&& other) noexcept { take(other); }
  Key& operator=(Key&& other) noexcept {
    if (this != &other) take(other);
    return *this;
  }
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;
  ~Key() { wipe(bytes_); }

  Key clone() const noexcept { return Key(bytes_); }
  ConstBytes bytes() const noexcept { return bytes_; }
  Bytes place() noexcept { return bytes_; }  // to be filled

 private:
  void assign(std::span<const std::byte, kKeySize> from) noexcept {
    for (size_t i = 0; i < kKeySize; ++i) bytes_[i] = from[i];
  }
  void take(Key& other) noexcept {
    bytes_ = other.bytes_;
    wipe(other.bytes_);
  }

  std::array<std::byte, kKeySize> bytes_{};
};

}  // namespace mcast::crypto
