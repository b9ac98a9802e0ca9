// Folding of contributions, the arithmetic of reduce-scatter and all-reduce.
//
// Numerics contract: contributions are folded one after the other in a fixed order
// (base/fold_order.h), so the bits do not depend on arrival. Floats of 8 and 16 bits accumulate in
// float32 and are rounded once, to nearest even, at the end (beyond its range float8_e4m3fn, which
// has no infinities, stays at its largest value, as in torch); other types accumulate in their own
// type (integers wrap). NaN propagates through SUM, PRODUCT, MIN and MAX as in torch. bool: SUM and
// MAX are OR, PRODUCT and MIN are AND.
//
// All functions: any alignment, no overlap between accumulator and source unless equal, any thread.
#pragma once

#include "base/element.h"
#include "base/types.h"

namespace mcast {

// Bytes of one accumulator element: 4 for floats of 8 and 16 bits, else the element's size.
constexpr size_t accumulator_size(Element e) noexcept {
  return is_floating(e) && element_size(e) < 4 ? 4 : element_size(e);
}

// Ratio of the accumulator's size to the element's; 1 for an unknown code.
constexpr size_t accumulator_ratio(Element e) noexcept {
  return element_size(e) == 0 ? 1 : accumulator_size(e) / element_size(e);
}

// Room of a station for the accumulators of a segment, in segments; so it folds no float8, whose
// accumulators are four times as long.
inline constexpr size_t kStationRatio = 2;
constexpr bool stations_fold(Element e) noexcept { return accumulator_ratio(e) <= kStationRatio; }

// Whether the sum or product of a few elements may be outside their range, or below it, although
// that of all is within and the accumulator holds both. Then who folds for several contributes
// elements of the accumulator. (bfloat16 has float32's range.)
constexpr bool contributes_wide(Element e, Reduction r) noexcept {
  return accumulator_ratio(e) > 1 && e != Element::kBFloat16 && r != Reduction::kMin &&
         r != Reduction::kMax;
}

// acc[i] = source[i] (first contribution); PREMUL_SUM: source[i] * factor.
void fold_first(Element e, Reduction r, double factor, const std::byte* source, std::byte* acc,
                size_t count);
// acc[i] = acc[i] (op) source[i].
void fold_next(Element e, Reduction r, double factor, const std::byte* source, std::byte* acc,
               size_t count);
// acc[i] = acc[i] (op) sum[i], both accumulators: a partial result, and another that was folded
// separately.
void fold_partial(Element e, Reduction r, const std::byte* sum, std::byte* acc, size_t count);
// Result: AVG divides by `ranks`, floats of 8 and 16 bits are rounded. out may be acc when sizes
// are equal.
void fold_finish(Element e, Reduction r, uint32_t ranks, const std::byte* acc, std::byte* out,
                 size_t count);

}  // namespace mcast
