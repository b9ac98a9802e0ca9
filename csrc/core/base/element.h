// Element types and reduction operators of the engine. The codes travel on the wire.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mcast {

enum class Element : uint8_t {
  kFloat64 = 1,
  kFloat32 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt64 = 5,
  kInt32 = 6,
  kInt16 = 7,
  kInt8 = 8,
  kUInt8 = 9,
  kBool = 10,
  kUInt16 = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kFloat8E4M3 = 14,  // float8_e4m3fn: without infinities
  kFloat8E5M2 = 15,
};

enum class Reduction : uint8_t {
  kSum = 1,
  kAvg = 2,
  kProduct = 3,
  kMin = 4,
  kMax = 5,
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8,
  kPremulSum = 9,
};

// Bytes of one element; 0 for an unknown code.
constexpr size_t element_size(Element e) noexcept {
  switch (e) {
    case Element::kFloat64:
    case Element::kInt64:
    case Element::kUInt64:
      return 8;
    case Element::kFloat32:
    case Element::kInt32:
    case Element::kUInt32:
      return 4;
    case Element::kFloat16:
    case Element::kBFloat16:
    case Element::kInt16:
    case Element::kUInt16:
      return 2;
    case Element::kInt8:
    case Element::kUInt8:
    case Element::kBool:
    case Element::kFloat8E4M3:
    case Element::kFloat8E5M2:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(Element e) noexcept {
  return e == Element::kFloat64 || e == Element::kFloat32 || e == Element::kFloat16 ||
         e == Element::kBFloat16 || e == Element::kFloat8E4M3 || e == Element::kFloat8E5M2;
}

// "float32", "sum": for messages.
const char* element_name(Element e) noexcept;
const char* reduction_name(Reduction r) noexcept;

// Returns true if `r` is defined for `e`: AVG and PREMUL_SUM need floating point, the bit operators
// integers or bool.
constexpr bool reducible(Element e, Reduction r) noexcept {
  switch (r) {
    case Reduction::kAvg:
    case Reduction::kPremulSum:
      return is_floating(e);
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor:
      return !is_floating(e);
    default:
      return true;
  }
}
// The same for received codes, which may be invalid.
constexpr bool reducible(uint8_t element, uint8_t reduction) noexcept {
  return element_size(static_cast<Element>(element)) != 0 &&
         reduction >= static_cast<uint8_t>(Reduction::kSum) &&
         reduction <= static_cast<uint8_t>(Reduction::kPremulSum) &&
         reducible(static_cast<Element>(element), static_cast<Reduction>(reduction));
}

}  // namespace mcast
