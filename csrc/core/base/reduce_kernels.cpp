// One generic loop per (accumulator, source, operator), vectorised by Highway for the best
// instruction set of the CPU it runs on (dynamic dispatch: this file is compiled once per target).
// The operators are functors over vectors; loads and stores are unaligned, since contributions
// arrive in network buffers; tails go through the same vector code with masks of n lanes.
#include "base/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/reduce_kernels.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mcast {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  template <class D, class V>
  V operator()(D, V a, V b) const {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class D, class V>
  V operator()(D d, V a, V b) const {
    using T = hn::TFromD<D>;
    if constexpr (sizeof(T) == 1) {
      // No 8-bit multiply: by 16-bit halves, low byte kept.
      const hn::Repartition<uint16_t, D> d16;
      const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
      const auto low = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00ff));
      const auto high = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(d, hn::Or(low, high));
    } else if constexpr (sizeof(T) == 8 && !hwy::IsFloat<T>()) {
      // 64-bit integer multiply is scalar on most targets.
      HWY_ALIGN T x[hn::MaxLanes(d)], y[hn::MaxLanes(d)];
      hn::Store(a, d, x);
      hn::Store(b, d, y);
      for (size_t i = 0; i < hn::Lanes(d); i++) {
        x[i] = static_cast<T>(static_cast<uint64_t>(x[i]) * static_cast<uint64_t>(y[i]));
      }
      return hn::Load(d, x);
    } else {
      return hn::Mul(a, b);
    }
  }
};

// NaN wins, as in torch.minimum and torch.maximum; b first, then a, so that a's NaN is kept.
struct Min {
  template <class D, class V>
  V operator()(D, V a, V b) const {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const V least = hn::IfThenElse(hn::Lt(b, a), b, a);
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, least));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class D, class V>
  V operator()(D, V a, V b) const {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const V most = hn::IfThenElse(hn::Gt(b, a), b, a);
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, most));
    } else {
      return hn::Max(a, b);
    }
  }
};

struct BitAnd {
  template <class D, class V>
  V operator()(D, V a, V b) const {
    return hn::And(a, b);
  }
};
struct BitOr {
  template <class D, class V>
  V operator()(D, V a, V b) const {
    return hn::Or(a, b);
  }
};
struct BitXor {
  template <class D, class V>
  V operator()(D, V a, V b) const {
    return hn::Xor(a, b);
  }
};

// acc[i] = op(acc[i], source[i]) for one lane type.
template <class T, class Op>
void FoldSame(const std::byte* source, std::byte* acc, size_t count, Op op) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const T* s = reinterpret_cast<const T*>(source);
  T* a = reinterpret_cast<T*>(acc);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(op(d, hn::LoadU(d, a + i), hn::LoadU(d, s + i)), d, a + i);
  }
  if (i < count) {
    HWY_ALIGN T x[hn::MaxLanes(d)] = {}, y[hn::MaxLanes(d)] = {};
    const size_t rest = count - i;
    __builtin_memcpy(x, a + i, rest * sizeof(T));
    __builtin_memcpy(y, s + i, rest * sizeof(T));
    hn::Store(op(d, hn::Load(d, x), hn::Load(d, y)), d, x);
    __builtin_memcpy(a + i, x, rest * sizeof(T));
  }
}

// Narrow floats are widened by hand: the same bits on every target. `Lane`: their bits.
struct FromBFloat16 {
  using Lane = uint16_t;
  template <class D32, class V16>
  hn::VFromD<D32> operator()(D32 d, V16 v) const {
    const hn::RebindToUnsigned<D32> u;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(u, v)));
  }
};
struct FromFloat16 {
  using Lane = uint16_t;
  template <class D32, class V16>
  hn::VFromD<D32> operator()(D32 d, V16 v) const {
    const hn::Rebind<hwy::float16_t, D32> h;
    return hn::PromoteTo(d, hn::BitCast(h, v));
  }
};

// float8: all 256 values from a table.
struct FromFloat8 {
  using Lane = uint8_t;
  const float* values;
  template <class D32, class V8>
  hn::VFromD<D32> operator()(D32 d, V8 v) const {
    const hn::RebindToSigned<D32> index;
    return hn::GatherIndex(d, values, hn::PromoteTo(index, v));
  }
};

// `first`: acc = source * factor; else acc = op(acc, source * factor). Accumulator float32.
template <class From, class Op>
void FoldWide(const std::byte* source, std::byte* acc, size_t count, float factor, bool first,
              From from, Op op) {
  using Lane = typename From::Lane;
  const hn::ScalableTag<float> d;
  const hn::Rebind<Lane, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  const auto* s = reinterpret_cast<const Lane*>(source);
  auto* a = reinterpret_cast<float*>(acc);
  const auto f = hn::Set(d, factor);
  const bool scale = factor != 1.0f;
  const auto one = [&](const Lane* from_s, float* to) {
    auto v = from(d, hn::LoadU(narrow, from_s));
    if (scale) v = hn::Mul(v, f);
    if (!first) v = op(d, hn::LoadU(d, to), v);
    hn::StoreU(v, d, to);
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) one(s + i, a + i);
  if (i < count) {
    HWY_ALIGN Lane y[4 * hn::MaxLanes(d)] = {};
    HWY_ALIGN float x[hn::MaxLanes(d)] = {};
    const size_t rest = count - i;
    __builtin_memcpy(y, s + i, rest * sizeof(Lane));
    __builtin_memcpy(x, a + i, rest * 4);
    one(y, x);
    __builtin_memcpy(a + i, x, rest * 4);
  }
}

// source * factor for float32 and float64, stored or added.
template <class T>
void FoldScaled(const std::byte* source, std::byte* acc, size_t count, T factor, bool first) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const T* s = reinterpret_cast<const T*>(source);
  T* a = reinterpret_cast<T*>(acc);
  const auto f = hn::Set(d, factor);
  size_t i = 0;
  // Multiply, then add, each rounded (this file is compiled without contraction): what a
  // pre-multiplying sender would have sent.
  for (; i + lanes <= count; i += lanes) {
    auto v = hn::Mul(hn::LoadU(d, s + i), f);
    if (!first) v = hn::Add(hn::LoadU(d, a + i), v);
    hn::StoreU(v, d, a + i);
  }
  for (; i < count; i++) {
    T x;
    __builtin_memcpy(&x, s + i, sizeof x);
    T y = x * factor;
    if (!first) {
      __builtin_memcpy(&x, a + i, sizeof x);
      y = x + y;
    }
    __builtin_memcpy(a + i, &y, sizeof y);
  }
}

template <class T>
void Divide(const std::byte* acc, std::byte* out, size_t count, T by) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const T* a = reinterpret_cast<const T*>(acc);
  T* o = reinterpret_cast<T*>(out);
  const auto v = hn::Set(d, by);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Div(hn::LoadU(d, a + i), v), d, o + i);
  for (; i < count; i++) {
    T x;
    __builtin_memcpy(&x, a + i, sizeof x);
    x /= by;
    __builtin_memcpy(o + i, &x, sizeof x);
  }
}

struct ToBFloat16 {
  using Lane = uint16_t;
  // Round to nearest even by integer arithmetic; NaN stays NaN (quiet, sign kept).
  template <class D32, class V>
  auto operator()(D32, V v) const {
    const hn::RebindToUnsigned<D32> u;
    const hn::Rebind<uint16_t, D32> d16;
    const auto bits = hn::BitCast(u, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(u, 0x0040));
    const auto nan = hn::RebindMask(u, hn::IsNaN(v));
    return hn::TruncateTo(d16, hn::IfThenElse(nan, quiet, rounded));
  }
};
struct ToFloat16 {
  using Lane = uint16_t;
  template <class D32, class V>
  auto operator()(D32, V v) const {
    const hn::Rebind<hwy::float16_t, D32> h;
    const hn::Rebind<uint16_t, D32> d16;
    return hn::BitCast(d16, hn::DemoteTo(h, v));
  }
};

// To nearest even, also among subnormals: there the addition of `kStep`, whose last place is that
// of a subnormal, rounds. From kTop on the result is kBeyond.
template <int kFraction, int kBias, uint32_t kTop, uint32_t kStep, uint32_t kBeyond>
struct ToFloat8 {
  using Lane = uint8_t;
  template <class D32, class V>
  auto operator()(D32 d, V v) const {
    constexpr int kDrop = 23 - kFraction;
    const hn::RebindToUnsigned<D32> u;
    const hn::Rebind<uint8_t, D32> d8;
    const auto bits = hn::BitCast(u, v);
    const auto size = hn::And(bits, hn::Set(u, 0x7fffffff));
    const auto odd = hn::And(hn::ShiftRight<kDrop>(size), hn::Set(u, 1));
    constexpr uint32_t kRound = (1u << (kDrop - 1)) - 1u, kShift = uint32_t{127 - kBias} << 23;
    const auto normal = hn::ShiftRight<kDrop>(
        hn::Add(hn::Sub(size, hn::Set(u, kShift)), hn::Add(odd, hn::Set(u, kRound))));
    const auto step = hn::Set(u, kStep);
    const auto sum = hn::Add(hn::BitCast(d, size), hn::BitCast(d, step));
    const auto subnormal = hn::Sub(hn::BitCast(u, sum), step);
    auto out =
        hn::IfThenElse(hn::Lt(size, hn::Set(u, uint32_t{128 - kBias} << 23)), subnormal, normal);
    out = hn::IfThenElse(hn::Gt(size, hn::Set(u, kTop - 1)), hn::Set(u, kBeyond), out);
    out = hn::IfThenElse(hn::Gt(size, hn::Set(u, 0x7f800000)), hn::Set(u, 0x7f), out);
    const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(u, 0x80));
    return hn::TruncateTo(d8, hn::Or(out, sign));
  }
};
// E4M3: above 464, which rounds to the largest value, the result is that value; E5M2: from 65536 on
// infinity. Steps: 16384, 128.
using ToFloat8E4M3 = ToFloat8<3, 7, 0x43e80001, 0x46800000, 0x7e>;
using ToFloat8E5M2 = ToFloat8<2, 15, 0x47800000, 0x43000000, 0x7c>;

template <class To>
void Narrow(const std::byte* acc, std::byte* out, size_t count, float by, To to) {
  using Lane = typename To::Lane;
  const hn::ScalableTag<float> d;
  const hn::Rebind<Lane, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  const auto* a = reinterpret_cast<const float*>(acc);
  auto* o = reinterpret_cast<Lane*>(out);
  const auto v = hn::Set(d, by);
  const auto one = [&](const float* from, Lane* target) {
    auto x = hn::LoadU(d, from);
    if (by != 1.0f) x = hn::Div(x, v);
    hn::StoreU(to(d, x), narrow, target);
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) one(a + i, o + i);
  if (i < count) {
    HWY_ALIGN float x[hn::MaxLanes(d)] = {};
    HWY_ALIGN Lane y[4 * hn::MaxLanes(d)] = {};
    __builtin_memcpy(x, a + i, (count - i) * 4);
    one(x, y);
    __builtin_memcpy(o + i, y, (count - i) * sizeof(Lane));
  }
}

template <class T>
void NextOf(Reduction r, const std::byte* source, std::byte* acc, size_t count) {
  switch (r) {
    case Reduction::kProduct:
      return FoldSame<T>(source, acc, count, Product{});
    case Reduction::kMin:
      return FoldSame<T>(source, acc, count, Min{});
    case Reduction::kMax:
      return FoldSame<T>(source, acc, count, Max{});
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor:
      if constexpr (!hwy::IsFloat<T>()) {
        if (r == Reduction::kBitAnd) return FoldSame<T>(source, acc, count, BitAnd{});
        if (r == Reduction::kBitOr) return FoldSame<T>(source, acc, count, BitOr{});
        return FoldSame<T>(source, acc, count, BitXor{});
      }
      return;
    default:
      return FoldSame<T>(source, acc, count, Sum{});
  }
}

template <class From>
void WideOf(Reduction r, float factor, bool first, const std::byte* source, std::byte* acc,
            size_t count, From from) {
  switch (r) {
    case Reduction::kProduct:
      return FoldWide(source, acc, count, 1.0f, first, from, Product{});
    case Reduction::kMin:
      return FoldWide(source, acc, count, 1.0f, first, from, Min{});
    case Reduction::kMax:
      return FoldWide(source, acc, count, 1.0f, first, from, Max{});
    default:
      return FoldWide(source, acc, count, r == Reduction::kPremulSum ? factor : 1.0f, first, from,
                      Sum{});
  }
}

// The same values on every target.
struct Float8Values {
  float e4m3[256], e5m2[256];
  constexpr Float8Values() : e4m3(), e5m2() {
    for (int i = 0; i < 256; i++) {
      e4m3[i] = (i & 0x7f) == 0x7f ? nan_of(i) : value_of(i, 3, 7);
      const bool finite = (i & 0x7c) != 0x7c;
      e5m2[i] = finite            ? value_of(i, 2, 15)
                : (i & 0x03) != 0 ? nan_of(i)
                : i < 0x80        ? __builtin_inff()
                                  : -__builtin_inff();
    }
  }
  static constexpr float nan_of(int i) {
    return i < 0x80 ? __builtin_nanf("") : -__builtin_nanf("");
  }
  static constexpr float value_of(int i, int fraction, int bias) {
    const int exponent = (i & 0x7f) >> fraction, steps = i & ((1 << fraction) - 1);
    // In units of the last place of a number of this magnitude.
    float value = static_cast<float>(exponent == 0 ? steps : steps + (1 << fraction));
    int unit = (exponent == 0 ? 1 : exponent) - bias - fraction;
    for (; unit > 0; unit--) value *= 2;
    for (; unit < 0; unit++) value /= 2;
    return i < 0x80 ? value : -value;
  }
};
alignas(64) constexpr Float8Values kFloat8;

void Fold(Element e, Reduction r, double factor, bool first, const std::byte* source,
          std::byte* acc, size_t count) {
  if (e == Element::kFloat8E4M3) {
    return WideOf(r, static_cast<float>(factor), first, source, acc, count,
                  FromFloat8{kFloat8.e4m3});
  }
  if (e == Element::kFloat8E5M2) {
    return WideOf(r, static_cast<float>(factor), first, source, acc, count,
                  FromFloat8{kFloat8.e5m2});
  }
  if (e == Element::kBFloat16) {
    return WideOf(r, static_cast<float>(factor), first, source, acc, count, FromBFloat16{});
  }
  if (e == Element::kFloat16) {
    return WideOf(r, static_cast<float>(factor), first, source, acc, count, FromFloat16{});
  }
  if (r == Reduction::kPremulSum) {
    if (e == Element::kFloat32) {
      return FoldScaled<float>(source, acc, count, static_cast<float>(factor), first);
    }
    return FoldScaled<double>(source, acc, count, factor, first);
  }
  if (first) {
    __builtin_memcpy(acc, source, count * element_size(e));
    return;
  }
  switch (e) {
    case Element::kFloat64:
      return NextOf<double>(r, source, acc, count);
    case Element::kFloat32:
      return NextOf<float>(r, source, acc, count);
    case Element::kInt64:
      return NextOf<int64_t>(r, source, acc, count);
    case Element::kInt32:
      return NextOf<int32_t>(r, source, acc, count);
    case Element::kInt16:
      return NextOf<int16_t>(r, source, acc, count);
    case Element::kInt8:
      return NextOf<int8_t>(r, source, acc, count);
    case Element::kUInt8:
      return NextOf<uint8_t>(r, source, acc, count);
    case Element::kUInt16:
      return NextOf<uint16_t>(r, source, acc, count);
    case Element::kUInt32:
      return NextOf<uint32_t>(r, source, acc, count);
    case Element::kUInt64:
      return NextOf<uint64_t>(r, source, acc, count);
    case Element::kBool:
      // Values are only 0 and 1: OR and AND are exact, whatever the operator is called.
      if (r == Reduction::kBitXor) return FoldSame<uint8_t>(source, acc, count, BitXor{});
      if (r == Reduction::kProduct || r == Reduction::kMin || r == Reduction::kBitAnd) {
        return FoldSame<uint8_t>(source, acc, count, BitAnd{});
      }
      return FoldSame<uint8_t>(source, acc, count, BitOr{});
    default:
      return;
  }
}

void Finish(Element e, Reduction r, uint32_t ranks, const std::byte* acc, std::byte* out,
            size_t count) {
  const double by = r == Reduction::kAvg ? ranks : 1.0;
  switch (e) {
    case Element::kBFloat16:
      return Narrow(acc, out, count, static_cast<float>(by), ToBFloat16{});
    case Element::kFloat16:
      return Narrow(acc, out, count, static_cast<float>(by), ToFloat16{});
    case Element::kFloat8E4M3:
      return Narrow(acc, out, count, static_cast<float>(by), ToFloat8E4M3{});
    case Element::kFloat8E5M2:
      return Narrow(acc, out, count, static_cast<float>(by), ToFloat8E5M2{});
    case Element::kFloat32:
      if (r == Reduction::kAvg) return Divide<float>(acc, out, count, static_cast<float>(by));
      break;
    case Element::kFloat64:
      if (r == Reduction::kAvg) return Divide<double>(acc, out, count, by);
      break;
    default:
      break;
  }
  if (acc != out) __builtin_memcpy(out, acc, count * element_size(e));
}

}  // namespace HWY_NAMESPACE
}  // namespace mcast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcast {

HWY_EXPORT(Fold);
HWY_EXPORT(Finish);

void fold_first(Element e, Reduction r, double factor, const std::byte* source, std::byte* acc,
                size_t count) {
  if (count == 0) return;  // pointers may be null
  HWY_DYNAMIC_DISPATCH(Fold)(e, r, factor, true, source, acc, count);
}

void fold_next(Element e, Reduction r, double factor, const std::byte* source, std::byte* acc,
               size_t count) {
  if (count == 0) return;  // pointers may be null
  HWY_DYNAMIC_DISPATCH(Fold)(e, r, factor, false, source, acc, count);
}

// Both contain the factors, and neither is divided yet.
void fold_partial(Element e, Reduction r, const std::byte* sum, std::byte* acc, size_t count) {
  const bool same = accumulator_size(e) == element_size(e);
  const bool adds = r == Reduction::kAvg || r == Reduction::kPremulSum;
  fold_next(same ? e : Element::kFloat32, adds ? Reduction::kSum : r, 1, sum, acc, count);
}

void fold_finish(Element e, Reduction r, uint32_t ranks, const std::byte* acc, std::byte* out,
                 size_t count) {
  if (count == 0) return;
  HWY_DYNAMIC_DISPATCH(Finish)(e, r, ranks, acc, out, count);
}

}  // namespace mcast
#endif  // HWY_ONCE
