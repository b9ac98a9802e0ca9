// Compares folding with a scalar model, bit for bit: all elements and operators, odd counts, any
// alignment.
#include "base/reduce_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace mcast {
namespace {

float from_bf16(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

uint16_t to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (std::isnan(f)) return static_cast<uint16_t>((bits >> 16) | 0x0040);
  return static_cast<uint16_t>((bits + ((bits >> 16) & 1) + 0x7fff) >> 16);
}

// Uses arithmetic, since compilers differ in their support of 16-bit types.
float from_f16(uint16_t h) {
  const int exponent = (h >> 10) & 0x1f;
  const int fraction = h & 0x3ff;
  const float sign = (h & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 0x1f && fraction != 0) {  // quiet NaN that keeps its payload
    const uint32_t bits = (h & 0x8000u) << 16 | 0x7fc00000u | static_cast<uint32_t>(fraction) << 13;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  if (exponent == 0x1f) return sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
}

uint16_t to_f16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (std::isnan(f)) return static_cast<uint16_t>(sign | 0x7e00 | (bits >> 13 & 0x1ff));
  if (std::fabs(f) >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  // The unit in the last place of a half of this size; rounds to nearest even.
  const int unit = std::max(f == 0 ? -24 : std::ilogb(f) - 10, -24);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(f), -unit)));
  // A carry out of the fraction correctly increments the exponent.
  return static_cast<uint16_t>(sign | (((unit + 24) << 10) + units));
}

// float8 by its definition: a value follows from the fields of its bits; a number is rounded to the
// nearest value, and to the even one if two are equally near.
struct Float8 {
  int fraction, bias;
  bool infinities;

  float value(uint8_t bits) const {
    const int exponent = (bits & 0x7f) >> fraction, steps = bits & ((1 << fraction) - 1);
    const int one = 1 << fraction;
    const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
    if (infinities && exponent == 0x7f >> fraction) {
      return sign * (steps != 0 ? std::numeric_limits<float>::quiet_NaN()
                                : std::numeric_limits<float>::infinity());
    }
    if (!infinities && (bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
    return sign * std::ldexp(static_cast<float>(exponent == 0 ? steps : steps + one),
                             std::max(exponent, 1) - bias - fraction);
  }
  uint8_t bits(float f) const {
    const auto sign = static_cast<uint8_t>(std::signbit(f) ? 0x80 : 0);
    if (std::isnan(f)) return sign | 0x7f;
    const float size = std::fabs(f);
    // A number that is nearer to the next value than to the largest becomes infinite, or the
    // largest if the type has no infinity.
    const uint8_t largest = infinities ? 0x7b : 0x7e;
    const uint8_t last = largest + 1;
    const double step = double{value(largest)} - double{value(largest - 1)};
    uint8_t best = 0;
    double distance = std::numeric_limits<double>::infinity();
    for (int candidate = 0; candidate <= last; candidate++) {
      const double at = candidate == last ? double{value(largest)} + step
                                          : double{value(static_cast<uint8_t>(candidate))};
      const double off = std::fabs(at - double{size});
      if (off < distance || (off == distance && candidate % 2 == 0)) {
        best = static_cast<uint8_t>(candidate);
        distance = off;
      }
    }
    if (std::isinf(f)) best = last;
    return sign | (best == last && !infinities ? largest : best);
  }
};
constexpr Float8 kE4M3{3, 7, false}, kE5M2{2, 15, true};

template <class T>
T model_op(Reduction r, T a, T b) {
  switch (r) {
    case Reduction::kProduct:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      } else {
        return a * b;
      }
    case Reduction::kMin:
      if (a != a) return a;
      if (b != b) return b;
      return b < a ? b : a;
    case Reduction::kMax:
      if (a != a) return a;
      if (b != b) return b;
      return b > a ? b : a;
    default:
      if constexpr (std::is_integral_v<T>) {
        if (r == Reduction::kBitAnd) return static_cast<T>(a & b);
        if (r == Reduction::kBitOr) return static_cast<T>(a | b);
        if (r == Reduction::kBitXor) return static_cast<T>(a ^ b);
        return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      } else {
        return a + b;
      }
  }
}

constexpr Element kElements[] = {Element::kFloat64,  Element::kFloat32,    Element::kFloat16,
                                 Element::kBFloat16, Element::kInt64,      Element::kInt32,
                                 Element::kInt16,    Element::kInt8,       Element::kUInt8,
                                 Element::kBool,     Element::kUInt16,     Element::kUInt32,
                                 Element::kUInt64,   Element::kFloat8E4M3, Element::kFloat8E5M2};

// Input of the scalar model: one buffer of `count` elements per rank.
struct ModelCall {
  Reduction reduction;
  double factor;
  size_t count;
  const std::vector<std::vector<std::byte>>& in;
};

// Folds elements whose accumulator has the same type.
template <class T>
void fold_plain(const ModelCall& c, std::byte* out) {
  for (size_t i = 0; i < c.count; i++) {
    T acc{};
    for (size_t k = 0; k < c.in.size(); k++) {
      T x;
      std::memcpy(&x, c.in[k].data() + i * sizeof(T), sizeof(T));
      if constexpr (std::is_floating_point_v<T>) {
        if (c.reduction == Reduction::kPremulSum) {
          volatile T scaled = x * static_cast<T>(c.factor);
          x = scaled;
        }
      }
      acc = k == 0 ? x : model_op(c.reduction, acc, x);
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (c.reduction == Reduction::kAvg) acc /= static_cast<T>(c.in.size());
    }
    std::memcpy(out + i * sizeof(T), &acc, sizeof(T));
  }
}

// Folds floats of 8 and 16 bits, which are folded as 32-bit floats and rounded once.
template <class Bits, class From, class To>
void fold_widened(const ModelCall& c, From from, To to, std::byte* out) {
  for (size_t i = 0; i < c.count; i++) {
    float acc = 0;
    for (size_t k = 0; k < c.in.size(); k++) {
      Bits h;
      std::memcpy(&h, c.in[k].data() + i * sizeof h, sizeof h);
      volatile float x = from(h);
      if (c.reduction == Reduction::kPremulSum) x = x * static_cast<float>(c.factor);
      acc = k == 0 ? float{x} : model_op<float>(c.reduction, acc, x);
    }
    if (c.reduction == Reduction::kAvg) acc /= static_cast<float>(c.in.size());
    const Bits h = to(acc);
    std::memcpy(out + i * sizeof h, &h, sizeof h);
  }
}

// On 0 and 1, sum and maximum are "or", product and minimum are "and".
void fold_bools(ModelCall c, std::byte* out) {
  switch (c.reduction) {
    case Reduction::kBitXor:
      break;
    case Reduction::kProduct:
    case Reduction::kMin:
    case Reduction::kBitAnd:
      c.reduction = Reduction::kBitAnd;
      break;
    default:
      c.reduction = Reduction::kBitOr;
  }
  fold_plain<uint8_t>(c, out);
}

std::vector<std::byte> model(Element e, const ModelCall& c) {
  std::vector<std::byte> out(c.count * element_size(e));
  switch (e) {
    case Element::kFloat64:
      fold_plain<double>(c, out.data());
      break;
    case Element::kFloat32:
      fold_plain<float>(c, out.data());
      break;
    case Element::kFloat16:
      fold_widened<uint16_t>(c, from_f16, to_f16, out.data());
      break;
    case Element::kBFloat16:
      fold_widened<uint16_t>(c, from_bf16, to_bf16, out.data());
      break;
    case Element::kInt64:
      fold_plain<int64_t>(c, out.data());
      break;
    case Element::kInt32:
      fold_plain<int32_t>(c, out.data());
      break;
    case Element::kInt16:
      fold_plain<int16_t>(c, out.data());
      break;
    case Element::kInt8:
      fold_plain<int8_t>(c, out.data());
      break;
    case Element::kUInt8:
      fold_plain<uint8_t>(c, out.data());
      break;
    case Element::kBool:
      fold_bools(c, out.data());
      break;
    case Element::kUInt16:
      fold_plain<uint16_t>(c, out.data());
      break;
    case Element::kUInt32:
      fold_plain<uint32_t>(c, out.data());
      break;
    case Element::kUInt64:
      fold_plain<uint64_t>(c, out.data());
      break;
    case Element::kFloat8E4M3:
    case Element::kFloat8E5M2: {
      const Float8 type = e == Element::kFloat8E4M3 ? kE4M3 : kE5M2;
      fold_widened<uint8_t>(
          c, [type](uint8_t h) { return type.value(h); }, [type](float f) { return type.bits(f); },
          out.data());
      break;
    }
  }
  return out;
}

std::vector<std::byte> random_values(Element e, size_t count, Rng& rng) {
  std::vector<std::byte> out(count * element_size(e));
  for (size_t i = 0; i < count; i++) {
    const auto x = static_cast<float>(rng.unit() * 8 - 4);
    std::byte* at = out.data() + i * element_size(e);
    const auto put = [at](auto v) { std::memcpy(at, &v, sizeof v); };
    switch (e) {
      case Element::kFloat64:
        put(rng.unit() * 8 - 4);
        break;
      case Element::kFloat32:
        put(x);
        break;
      case Element::kFloat16:
        put(to_f16(x));
        break;
      case Element::kBFloat16:
        put(to_bf16(x));
        break;
      case Element::kFloat8E4M3:
        put(kE4M3.bits(x));
        break;
      case Element::kFloat8E5M2:
        put(kE5M2.bits(x));
        break;
      case Element::kBool:
        put(static_cast<uint8_t>(rng.below(2)));
        break;
      default:
        for (size_t b = 0; b < element_size(e); b++) at[b] = static_cast<std::byte>(rng.below(256));
    }
  }
  return out;
}

TEST(ReduceKernels, EqualTheModelBitForBit) {
  Rng rng(42);
  for (const Element e : kElements) {
    for (uint8_t code = 1; code <= 9; code++) {
      const auto r = static_cast<Reduction>(code);
      if (!reducible(e, r)) continue;
      for (const size_t count :
           {size_t{0}, size_t{1}, size_t{3}, size_t{63}, size_t{64}, size_t{65}, size_t{1001}}) {
        for (const uint32_t ranks : {1u, 2u, 5u}) {
          const double factor = 0.37;
          std::vector<std::vector<std::byte>> in;
          for (uint32_t k = 0; k < ranks; k++) in.push_back(random_values(e, count, rng));
          const size_t skew = rng.below(2) * element_size(e);
          std::vector<std::byte> acc(count * accumulator_size(e) + 16),
              out(count * element_size(e) + 16);
          for (uint32_t k = 0; k < ranks; k++) {
            std::vector<std::byte> shifted(in[k].size() + 16);
            if (!in[k].empty()) std::memcpy(shifted.data() + skew, in[k].data(), in[k].size());
            (k == 0 ? fold_first : fold_next)(e, r, factor, shifted.data() + skew, acc.data(),
                                              count);
          }
          fold_finish(e, r, ranks, acc.data(), out.data() + skew, count);
          const auto want = model(e, {r, factor, count, in});
          ASSERT_TRUE(std::equal(want.begin(), want.end(), out.data() + skew))
              << element_name(e) << " " << reduction_name(r) << " count " << count << " ranks "
              << ranks;
        }
      }
    }
  }
}

TEST(ReduceKernels, NanAndInfinityPropagate) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  for (const Reduction r :
       {Reduction::kSum, Reduction::kProduct, Reduction::kMin, Reduction::kMax}) {
    for (const bool nan_first : {true, false}) {
      std::vector<float> a(37, nan_first ? nan : 1.0f), b(37, nan_first ? 1.0f : nan), acc(37),
          out(37);
      const auto bytes = [](std::vector<float>& v) {
        return reinterpret_cast<std::byte*>(v.data());
      };
      fold_first(Element::kFloat32, r, 1, bytes(a), bytes(acc), 37);
      fold_next(Element::kFloat32, r, 1, bytes(b), bytes(acc), 37);
      fold_finish(Element::kFloat32, r, 2, bytes(acc), bytes(out), 37);
      for (const float x : out) ASSERT_TRUE(std::isnan(x)) << reduction_name(r);
    }
  }
  // The largest finite bfloat16 plus itself rounds to infinity, not to NaN.
  const uint16_t big = 0x7f7f;
  uint16_t out = 0;
  float acc = 0;
  fold_first(Element::kBFloat16, Reduction::kSum, 1, reinterpret_cast<const std::byte*>(&big),
             reinterpret_cast<std::byte*>(&acc), 1);
  fold_next(Element::kBFloat16, Reduction::kSum, 1, reinterpret_cast<const std::byte*>(&big),
            reinterpret_cast<std::byte*>(&acc), 1);
  fold_finish(Element::kBFloat16, Reduction::kSum, 2, reinterpret_cast<std::byte*>(&acc),
              reinterpret_cast<std::byte*>(&out), 1);
  EXPECT_EQ(from_bf16(out), inf);
}

// Sums of two values reach every midpoint between neighbours, subnormals, and values beyond the
// range.
TEST(ReduceKernels, Float8RoundsToNearestEvenEverywhere) {
  for (const auto& [e, type] :
       {std::pair(Element::kFloat8E4M3, kE4M3), std::pair(Element::kFloat8E5M2, kE5M2)}) {
    std::vector<uint8_t> a, b;
    for (int i = 0; i < 256; i++) {
      for (int j = 0; j < 256; j++) {
        if (std::isnan(type.value(static_cast<uint8_t>(i)))) continue;
        if (std::isnan(type.value(static_cast<uint8_t>(j)))) continue;
        a.push_back(static_cast<uint8_t>(i));
        b.push_back(static_cast<uint8_t>(j));
      }
    }
    std::vector<float> acc(a.size());
    std::vector<uint8_t> out(a.size());
    auto* const sum = reinterpret_cast<std::byte*>(acc.data());
    fold_first(e, Reduction::kSum, 1, reinterpret_cast<const std::byte*>(a.data()), sum, a.size());
    for (size_t i = 0; i < a.size(); i++) ASSERT_EQ(acc[i], type.value(a[i]));
    fold_next(e, Reduction::kSum, 1, reinterpret_cast<const std::byte*>(b.data()), sum, a.size());
    fold_finish(e, Reduction::kSum, 2, sum, reinterpret_cast<std::byte*>(out.data()), a.size());
    for (size_t i = 0; i < a.size(); i++) {
      const float exact = type.value(a[i]) + type.value(b[i]);
      if (std::isnan(exact)) {
        ASSERT_EQ(out[i] & 0x7f, 0x7f);
      } else {
        ASSERT_EQ(out[i], type.bits(exact)) << element_name(e) << " " << exact;
      }
    }
  }
}

TEST(ReduceKernels, UnsignedIntegersHaveTheirOwnOrder) {
  const uint64_t a = 1, b = uint64_t{1} << 63;
  const auto bytes = [](const uint64_t& v) { return reinterpret_cast<const std::byte*>(&v); };
  for (const Element e : {Element::kUInt64, Element::kInt64}) {
    uint64_t acc = 0;
    fold_first(e, Reduction::kMax, 1, bytes(a), reinterpret_cast<std::byte*>(&acc), 1);
    fold_next(e, Reduction::kMax, 1, bytes(b), reinterpret_cast<std::byte*>(&acc), 1);
    EXPECT_EQ(acc, e == Element::kUInt64 ? b : a);
  }
}

TEST(ReduceKernels, MeaninglessPairsAreKnown) {
  EXPECT_FALSE(reducible(Element::kInt32, Reduction::kAvg));
  EXPECT_FALSE(reducible(Element::kFloat32, Reduction::kBitAnd));
  EXPECT_FALSE(reducible(Element::kBool, Reduction::kPremulSum));
  EXPECT_TRUE(reducible(Element::kBool, Reduction::kSum));
  EXPECT_FALSE(reducible(Element::kUInt16, Reduction::kAvg));
  EXPECT_TRUE(reducible(Element::kFloat8E4M3, Reduction::kPremulSum));
  EXPECT_FALSE(reducible(Element::kFloat8E5M2, Reduction::kBitXor));
  EXPECT_FALSE(reducible(uint8_t{16}, uint8_t{1}));
}

}  // namespace
}  // namespace mcast
