// RackFold: brackets by rack. The bits do not depend on who folds a rack or on the order of
// arrival.
#include "protocol/rack_fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/fold_order.h"
#include "protocol/fold_values.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr Element kRackElements[] = {Element::kFloat64,  Element::kFloat32,   Element::kFloat16,
                                     Element::kBFloat16, Element::kInt32,     Element::kBool,
                                     Element::kUInt64,   Element::kFloat8E5M2};

// Contributors in racks, their contributions, and the expected result.
struct RackCase {
  FoldRule rule;
  Racks racks;
  uint32_t contributors;
  FoldRun run;
  size_t count;
  std::vector<Block> inputs;
  std::vector<double> factors;

  explicit RackCase(Rng& rng) : contributors(2 + static_cast<uint32_t>(rng.below(9))) {
    do {
      rule.element = kRackElements[rng.below(std::size(kRackElements))];
      rule.reduction = static_cast<Reduction>(1 + rng.below(9));
    } while (!reducible(rule.element, rule.reduction));
    rule.divisor = contributors;
    const size_t kinds = 1 + rng.below(4);
    std::vector<std::string> names;
    for (uint32_t c = 0; c < contributors; c++)
      names.push_back(std::string(1, "abcd"[rng.below(kinds)]));
    racks = Racks(names);
    const auto owner = static_cast<uint32_t>(rng.below(contributors));
    const FoldOrder order = rng.chance(0.5) ? FoldOrder::kTurn : FoldOrder::kRank;
    run = {first_folded(order, owner, contributors), contributors};
    count = 1 + rng.below(40);
    for (uint32_t c = 0; c < contributors; c++) {
      inputs.push_back(fold_values(rule.element, count, rng));
      factors.push_back(rule.reduction == Reduction::kPremulSum ? 0.25 + rng.unit() : 1);
    }
  }
  size_t bytes() const { return count * element_size(rule.element); }
  size_t accumulator() const { return rule.accumulator_bytes(bytes()); }
  bool in_rack(uint32_t c, uint32_t rack) const { return racks.flat() || racks.rack_of(c) == rack; }

  // The sum of one bracket, in the run's order.
  Block sum(uint32_t rack) const {
    Block acc(accumulator());
    bool first = true;
    for (uint32_t i = 0; i < contributors; i++) {
      const uint32_t c = (run.first + i) % contributors;
      if (!in_rack(c, rack)) continue;
      (first ? fold_first : fold_next)(rule.element, rule.reduction, factors[c], inputs[c].data(),
                                       acc.data(), count);
      first = false;
    }
    return acc;
  }
  Block result() const {
    const bool half = accumulator_size(rule.element) != element_size(rule.element);
    const bool adds = rule.reduction == Reduction::kAvg || rule.reduction == Reduction::kPremulSum;
    Block all = sum(0), out(bytes());
    for (uint32_t r = 1; r < racks.count(); r++) {
      const Block one = sum(r);
      fold_next(half ? Element::kFloat32 : rule.element, adds ? Reduction::kSum : rule.reduction, 1,
                one.data(), all.data(), count);
    }
    fold_finish(rule.element, rule.reduction, rule.divisor, all.data(), out.data(), count);
    return out;
  }
};

TEST(RackFold, HasTheBitsOfTheBracketsWhoeverFoldsARack) {
  for_seeds(seeds(600), [](uint64_t seed) -> std::string {
    Rng rng(seed);
    const RackCase c(rng);
    BufferPool pool, sums;
    RackFold top(c.contributors, c.racks, pool, sums), leaf(c.contributors, c.racks, pool, sums);
    for (int again = 0; again < 2; again++) {
      Block acc(c.accumulator()), part(c.accumulator()), out(c.bytes());
      top.begin(c.rule, c.run, c.bytes(), acc.data());
      if (rng.chance(0.2)) {  // abandoned in the middle
        (void)top.add(static_cast<uint32_t>(rng.below(c.contributors)), 1, c.inputs[0]);
        top.begin(c.rule, c.run, c.bytes(), acc.data());
      }
      std::vector<bool> by_leaf(std::max(1u, c.racks.count()));
      for (size_t r = 0; !c.racks.flat() && r < by_leaf.size(); r++) by_leaf[r] = rng.chance(0.5);
      const uint32_t racks = static_cast<uint32_t>(by_leaf.size());
      for (const uint32_t i : shuffled(c.contributors + racks, rng)) {
        if (i < c.contributors) {
          const uint32_t rack = c.racks.flat() ? 0 : c.racks.rack_of(i);
          if (by_leaf[rack]) continue;
          if (top.complete()) return "complete too early";
          if (!top.add(i, c.factors[i], c.inputs[i])) return "refused";
          if (top.add(i, c.factors[i], c.inputs[i])) return "taken twice";
          continue;
        }
        const uint32_t rack = i - c.contributors;
        if (!by_leaf[rack]) continue;
        leaf.begin(c.rule, c.run, c.bytes(), part.data(), rack);
        for (const uint32_t m : shuffled(c.contributors, rng)) {
          if (leaf.add(m, c.factors[m], c.inputs[m]) != c.in_rack(m, rack)) return "another rack's";
        }
        if (!leaf.complete()) return "the leaf is not done";
        const ConstBytes sum = leaf.partial();
        if (top.complete()) return "complete too early";
        if (top.add_rack(rack, sum.first(sum.size() - 1))) return "a short sum";
        if (!top.add_rack(rack, sum) || top.add_rack(rack, sum)) return "the sum once";
      }
      if (!top.complete()) return "not complete";
      top.finish(out.data());
      if (out != c.result()) return "other bits";
    }
    return "";
  });
}

}  // namespace
}  // namespace mcast::test
