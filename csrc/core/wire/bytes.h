// Little-endian field access and the two cursors of the codec. Reader is total: reading past the
// end sets a flag and yields zeros, so a parser checks once at its end instead of at every field.
#pragma once

#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcast::wire {

// Headers, descriptors and reduced elements are used in place: no code swaps bytes.
static_assert(std::endian::native == std::endian::little,
              "torch-mcast runs on little-endian machines only");

template <typename T>
T load(const std::byte* at) noexcept {
  static_assert(std::is_integral_v<T>);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* at, T value) noexcept {
  static_assert(std::is_integral_v<T>);
  std::memcpy(at, &value, sizeof value);
}

class Reader {
 public:
  explicit Reader(ConstBytes bytes) noexcept : bytes_(bytes) {}

  template <typename T>
  T get() noexcept {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return T{};
    }
    const T value = load<T>(bytes_.data());
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  ConstBytes rest() noexcept { return std::exchange(bytes_, ConstBytes{}); }
  std::string_view rest_text() noexcept {
    const ConstBytes r = rest();
    return {reinterpret_cast<const char*>(r.data()), r.size()};
  }
  size_t remaining() const noexcept { return bytes_.size(); }
  // Returns true if every get() was satisfied.
  bool ok() const noexcept { return ok_; }
  // Returns true if, besides, no bytes are left.
  bool done() const noexcept { return ok_ && bytes_.empty(); }

 private:
  ConstBytes bytes_;
  bool ok_ = true;
};

class Writer {
 public:
  template <typename T>
  void put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    store<T>(bytes_.data() + at, value);
  }
  void put_text(std::string_view text) {
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), data, data + text.size());
  }
  ConstBytes bytes() const noexcept { return bytes_; }
  size_t size() const noexcept { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace mcast::wire
