// Computes the expected results of reductions by folding the patterns of all ranks one after the
// other: ranks of a host first, then hosts in their order, in brackets of racks.
#include "sim/network/expected.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/reduce_kernels.h"
#include "sim/network/content.h"

namespace mcast::sim {
namespace {

// Returns true if the element at `at` is a NaN.
bool is_nan(Element e, const std::byte* at) {
  const size_t size = element_size(e);
  uint64_t bits = 0;
  std::memcpy(&bits, at, size);
  const int mantissa = e == Element::kFloat64   ? 52
                       : e == Element::kFloat32 ? 23
                       : e == Element::kFloat16 ? 10
                                                : 7;
  const uint64_t sign = 1ull << (size * 8 - 1);
  return is_floating(e) && (bits & (sign - 1)) > ((sign - 1) >> mantissa << mantissa);
}

// The lowest rank of each host, in the order in which the hosts' contributions are folded.
std::vector<uint32_t> leads_in_order(uint32_t ranks, const std::vector<uint32_t>& host_of,
                                     std::optional<uint32_t> owner,
                                     const std::vector<Member>& absent) {
  std::vector<uint32_t> leads;
  size_t after_owner = 0;
  for (uint32_t r = 0; r < ranks; r++) {
    const auto same = [&](uint32_t other) {
      return host_of.empty() ? other == r : host_of[other] == host_of[r];
    };
    if (std::none_of(leads.begin(), leads.end(), same)) {
      if (std::find(absent.begin(), absent.end(), r) == absent.end()) leads.push_back(r);
      if (owner && same(*owner)) after_owner = leads.size();
    }
  }
  std::rotate(leads.begin(), leads.begin() + static_cast<ptrdiff_t>(after_owner), leads.end());
  return leads;
}

// The lead ranks of each rack, in this order; racks are ordered by their lowest rank.
std::vector<std::vector<uint32_t>> leads_by_rack(const std::vector<uint32_t>& leads,
                                                 const std::vector<std::string>& racks) {
  if (racks.empty()) return {leads};
  std::vector<std::string> order;
  for (const std::string& rack : racks) {
    if (std::find(order.begin(), order.end(), rack) == order.end()) order.push_back(rack);
  }
  std::vector<std::vector<uint32_t>> out;
  for (const std::string& rack : order) {
    std::vector<uint32_t>& some = out.emplace_back();
    std::copy_if(leads.begin(), leads.end(), std::back_inserter(some),
                 [&](uint32_t lead) { return racks[lead] == rack; });
  }
  return out;
}

// Folds one bracket after the other; each consists of the contributions of its leads, given by
// `part`.
std::vector<std::byte> folded_in_brackets(
    const std::vector<std::vector<uint32_t>>& racks, Element element, Reduction reduction,
    size_t bytes, uint32_t ranks, const std::function<std::vector<std::byte>(uint32_t)>& part,
    const std::function<double(uint32_t)>& factor) {
  const size_t count = bytes / element_size(element);
  const bool half = accumulator_size(element) != element_size(element);
  const bool adds = reduction == Reduction::kAvg || reduction == Reduction::kPremulSum;
  std::vector<std::byte> all, out(bytes);
  for (const std::vector<uint32_t>& leads : racks) {
    if (leads.empty()) continue;
    std::vector<std::byte> sum(count * accumulator_size(element));
    for (const uint32_t lead : leads) {
      (lead == leads[0] ? fold_first : fold_next)(element, reduction, factor(lead),
                                                  part(lead).data(), sum.data(), count);
    }
    if (all.empty()) {
      all = sum;
    } else {
      fold_next(half ? Element::kFloat32 : element, adds ? Reduction::kSum : reduction, 1,
                sum.data(), all.data(), count);
    }
  }
  fold_finish(element, reduction, ranks, all.data(), out.data(), count);
  return out;
}

// Folds in two steps, with the rules written out: averages are divided at the end; PREMUL_SUM
// factors are applied within the hosts; the hosts' contributions are rounded, except for sums and
// products of narrow floats with a smaller range than bfloat16.
std::vector<std::byte> reduced_by_hosts(uint64_t op, uint32_t ranks, Element element,
                                        Reduction reduction, size_t from, size_t bytes,
                                        const std::vector<uint32_t>& host_of,
                                        const std::vector<std::vector<uint32_t>>& racks) {
  const size_t count = bytes / element_size(element);
  const bool extreme = reduction == Reduction::kMin || reduction == Reduction::kMax;
  const bool wide = accumulator_size(element) != element_size(element) &&
                    element != Element::kBFloat16 && !extreme;
  const Reduction within = reduction == Reduction::kAvg ? Reduction::kSum : reduction;
  const Reduction between = reduction == Reduction::kPremulSum ? Reduction::kSum : reduction;
  const auto of_host = [&](uint32_t lead) {
    std::vector<std::byte> sum(count * accumulator_size(element)), part(bytes);
    for (uint32_t r = lead; r < ranks; r++) {
      if (host_of[r] != host_of[lead]) continue;
      std::vector<std::byte> own(bytes);
      fill_pattern(op, r, own, from);
      (r == lead ? fold_first : fold_next)(element, within, factor_of(r), own.data(), sum.data(),
                                           count);
    }
    if (wide) return sum;
    fold_finish(element, within, 1, sum.data(), part.data(), count);
    return part;
  };
  const auto one = [](uint32_t) { return 1.0; };
  if (!wide) return folded_in_brackets(racks, element, between, bytes, ranks, of_host, one);
  const std::vector<std::byte> sum = folded_in_brackets(
      racks, Element::kFloat32, between == Reduction::kAvg ? Reduction::kSum : between,
      count * sizeof(float), ranks, of_host, one);
  std::vector<std::byte> out(bytes);
  fold_finish(element, between, ranks, sum.data(), out.data(), count);
  return out;
}

}  // namespace

std::vector<std::byte> reduced(uint64_t op, uint32_t ranks, Element element, Reduction reduction,
                               size_t from, size_t bytes, const Folding& folding,
                               std::optional<uint32_t> owner) {
  const auto racks =
      leads_by_rack(leads_in_order(ranks, folding.host_of, owner, folding.absent), folding.racks);
  if (!folding.host_of.empty()) {
    return reduced_by_hosts(op, ranks, element, reduction, from, bytes, folding.host_of, racks);
  }
  const auto part = [&](uint32_t r) {
    std::vector<std::byte> own(bytes);
    fill_pattern(op, r, own, from);
    return own;
  };
  const auto divisor = static_cast<uint32_t>(ranks - folding.absent.size());
  return folded_in_brackets(racks, element, reduction, bytes, divisor, part, factor_of);
}

std::vector<std::byte> reduced_of(const InputOf& input, uint32_t ranks, Element element,
                                  Reduction reduction, size_t from, size_t bytes,
                                  std::optional<uint32_t> owner) {
  const size_t count = bytes / element_size(element);
  std::vector<std::byte> sum(count * accumulator_size(element)), out(bytes);
  const uint32_t first = owner ? *owner + 1 : 0;
  for (uint32_t i = 0; i < ranks; i++) {
    const uint32_t rank = (first + i) % ranks;
    (i == 0 ? fold_first : fold_next)(element, reduction, factor_of(rank), input(rank, from, bytes),
                                      sum.data(), count);
  }
  fold_finish(element, reduction, ranks, sum.data(), out.data(), count);
  return out;
}

std::vector<std::byte> expected_result(wire::Kind kind, uint64_t op, uint32_t ranks, Member rank,
                                       Element element, Reduction reduction, size_t bytes,
                                       const Folding& folding) {
  if (kind == wire::Kind::kReduceScatter) {
    return reduced(op, ranks, element, reduction, rank * bytes, bytes, folding,
                   folding.in_turn ? std::optional<uint32_t>(rank) : std::nullopt);
  }
  if (!folding.in_turn) return reduced(op, ranks, element, reduction, 0, bytes, folding);
  // Each owner's elements are folded in that owner's order.
  const size_t each = element_size(element), elements = bytes / each;
  const size_t part = (elements + ranks - 1) / ranks;
  std::vector<std::byte> all;
  for (uint32_t owner = 0; owner < ranks && owner * part < elements; owner++) {
    const size_t count = std::min(part, elements - owner * part);
    const auto own =
        reduced(op, ranks, element, reduction, owner * part * each, count * each, folding, owner);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

size_t first_difference(Element element, const std::byte* have,
                        const std::vector<std::byte>& want) {
  if (std::equal(want.begin(), want.end(), have)) return want.size();
  for (size_t i = 0; i < want.size(); i++) {
    const size_t first = i - i % element_size(element);
    if (have[i] != want[i] &&
        !(is_nan(element, have + first) && is_nan(element, want.data() + first))) {
      return i;
    }
  }
  return want.size();
}

}  // namespace mcast::sim
