// Names of element types and reduction operators.
#include "base/element.h"

namespace mcast {

const char* element_name(Element e) noexcept {
  static constexpr const char* kNames[] = {"?",        "float64", "float32",       "float16",
                                           "bfloat16", "int64",   "int32",         "int16",
                                           "int8",     "uint8",   "bool",          "uint16",
                                           "uint32",   "uint64",  "float8_e4m3fn", "float8_e5m2"};
  const auto i = static_cast<uint8_t>(e);
  return i < sizeof kNames / sizeof kNames[0] ? kNames[i] : "?";
}

const char* reduction_name(Reduction r) noexcept {
  static constexpr const char* kNames[] = {"?",   "sum",     "avg",    "product", "min",
                                           "max", "bit_and", "bit_or", "bit_xor", "premul_sum"};
  const auto i = static_cast<uint8_t>(r);
  return i < sizeof kNames / sizeof kNames[0] ? kNames[i] : "?";
}

}  // namespace mcast
