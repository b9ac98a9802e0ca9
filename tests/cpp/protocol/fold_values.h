// Contributions for tests of folds, and the order of their arrival.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/element.h"
#include "base/rng.h"

namespace mcast::test {

using Block = std::vector<std::byte>;

// Values with which another order of additions gives another sum.
inline Block fold_values(Element e, size_t count, Rng& rng) {
  Block block(count * element_size(e));
  for (size_t i = 0; i < count; i++) {
    std::byte* const to = block.data() + i * element_size(e);
    const double value = (rng.unit() - 0.5) * std::exp2(static_cast<double>(rng.below(12)));
    if (e == Element::kFloat64) {
      std::memcpy(to, &value, 8);
    } else if (e == Element::kFloat32) {
      const auto v = static_cast<float>(value);
      std::memcpy(to, &v, 4);
    } else if (e == Element::kBFloat16) {
      const auto bits =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
      std::memcpy(to, &bits, 2);
    } else if (e == Element::kFloat16) {
      // Sign, exponent 10 to 20 of 31, mantissa.
      const auto bits =
          static_cast<uint16_t>(rng.below(2) << 15 | (10 + rng.below(11)) << 10 | rng.below(1024));
      std::memcpy(to, &bits, 2);
    } else if (e == Element::kFloat8E4M3 || e == Element::kFloat8E5M2) {
      // Neither infinite nor NaN, not even as a product of a few.
      *to = static_cast<std::byte>(rng.below(2) << 7 | (0x30 + rng.below(0x18)));
    } else {
      const uint64_t bits = e == Element::kBool ? rng.below(2) : rng.next();
      std::memcpy(to, &bits, element_size(e));
    }
  }
  return block;
}

// All numbers below n, in any order.
inline std::vector<uint32_t> shuffled(uint32_t n, Rng& rng) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = n; i > 1; i--) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

}  // namespace mcast::test
