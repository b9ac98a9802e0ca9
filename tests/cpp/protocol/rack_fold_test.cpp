// RackFold: brackets by rack, with the same bits whoever folds a rack and whoever comes first.
#include "protocol/rack_fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/fold_order.h"
#include "base/rng.h"
#include "protocol/leaf_deal.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using RackBlock = std::vector<std::byte>;

constexpr Element kRackElements[] = {Element::kFloat64,  Element::kFloat32, Element::kFloat16,
                                     Element::kBFloat16, Element::kInt32,   Element::kBool};

RackBlock rack_values(Element e, size_t count, Rng& rng) {
  RackBlock block(count * element_size(e));
  for (size_t i = 0; i < count; i++) {
    std::byte* const to = block.data() + i * element_size(e);
    const double value = (rng.unit() - 0.5) * std::exp2(static_cast<double>(rng.below(12)));
    const auto narrow = static_cast<float>(value);
    uint64_t bits = e == Element::kBool ? rng.below(2) : rng.next();
    if (e == Element::kFloat64) std::memcpy(&bits, &value, 8);
    if (e == Element::kFloat32) std::memcpy(&bits, &narrow, 4);
    if (e == Element::kBFloat16) std::memcpy(&bits, reinterpret_cast<const char*>(&narrow) + 2, 2);
    if (e == Element::kFloat16)
      bits = rng.below(2) << 15 | (10 + rng.below(11)) << 10 | rng.below(1024);
    std::memcpy(to, &bits, element_size(e));
  }
  return block;
}

// Contributors in racks, what they contribute, and what must come of it.
struct RackCase {
  FoldRule rule;
  Racks racks;
  uint32_t contributors;
  FoldRun run;
  size_t count;
  std::vector<RackBlock> inputs;
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
      inputs.push_back(rack_values(rule.element, count, rng));
      factors.push_back(rule.reduction == Reduction::kPremulSum ? 0.25 + rng.unit() : 1);
    }
  }
  size_t bytes() const { return count * element_size(rule.element); }
  size_t accumulator() const { return SegmentFold::accumulator_bytes(rule, bytes()); }
  bool in_rack(uint32_t c, uint32_t rack) const { return racks.flat() || racks.rack_of(c) == rack; }

  // One bracket, in the run's order.
  RackBlock sum(uint32_t rack) const {
    RackBlock acc(accumulator());
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
  RackBlock result() const {
    const bool half = accumulator_size(rule.element) != element_size(rule.element);
    const bool adds = rule.reduction == Reduction::kAvg || rule.reduction == Reduction::kPremulSum;
    RackBlock all = sum(0), out(bytes());
    for (uint32_t r = 1; r < racks.count(); r++) {
      const RackBlock one = sum(r);
      fold_next(half ? Element::kFloat32 : rule.element, adds ? Reduction::kSum : rule.reduction, 1,
                one.data(), all.data(), count);
    }
    fold_finish(rule.element, rule.reduction, rule.divisor, all.data(), out.data(), count);
    return out;
  }
};

std::vector<uint32_t> any_order(uint32_t n, Rng& rng) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = n; i > 1; i--) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

TEST(RackFold, HasTheBitsOfTheBracketsWhoeverFoldsARack) {
  for_seeds(seeds(600), [](uint64_t seed) -> std::string {
    Rng rng(seed);
    const RackCase c(rng);
    BufferPool pool, sums;
    RackFold top(c.contributors, c.racks, pool, sums), leaf(c.contributors, c.racks, pool, sums);
    for (int again = 0; again < 2; again++) {
      RackBlock acc(c.accumulator()), part(c.accumulator()), out(c.bytes());
      top.begin(c.rule, c.run, c.bytes(), acc.data());
      if (rng.chance(0.2)) {  // given up in the middle
        (void)top.add(static_cast<uint32_t>(rng.below(c.contributors)), 1, c.inputs[0]);
        top.begin(c.rule, c.run, c.bytes(), acc.data());
      }
      std::vector<bool> by_leaf(std::max(1u, c.racks.count()));
      for (size_t r = 0; !c.racks.flat() && r < by_leaf.size(); r++) by_leaf[r] = rng.chance(0.5);
      const uint32_t racks = static_cast<uint32_t>(by_leaf.size());
      for (const uint32_t i : any_order(c.contributors + racks, rng)) {
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
        for (const uint32_t m : any_order(c.contributors, rng)) {
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

TEST(Racks, AreNumberedByTheirLowestContributor) {
  const Racks racks({"b", "a", "", "b", "a"});
  ASSERT_FALSE(racks.flat());
  EXPECT_EQ(racks.count(), 3u);
  EXPECT_EQ(racks.members(0), (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(racks.members(1), (std::vector<uint32_t>{1, 4}));
  EXPECT_EQ(racks.rack_of(2), 2u);
  EXPECT_EQ(racks.find("a"), 1u);
  EXPECT_FALSE(racks.find("c") || racks.find(""));
  EXPECT_EQ(racks.first_place(0, 1), 1u);
  EXPECT_EQ(racks.first_place(0, 4), 0u);
  EXPECT_TRUE(Racks({"a", "a"}).flat());
  EXPECT_TRUE(Racks().flat());
}

TEST(LeafDeal, SharesEveryPrefixByCapacity) {
  const LeafDeal deal(7, {{{3, 3000}, {4, 1000}, {5, 0}}, {}, {{6, 1}}});
  EXPECT_TRUE(deal.any() && deal.has(4) && !deal.has(5) && !deal.has(2));
  for (Member owner = 0; owner < 4; owner++) {
    double first = 0;
    for (uint32_t i = 0; i < 1000; i++) {
      const uint16_t leaf = deal.leaf(0, owner, i);
      ASSERT_TRUE(leaf == 3 || leaf == 4);
      first += leaf == 3 ? 1 : 0;
      ASSERT_NEAR(first, 0.75 * (i + 1), 3) << i;
    }
    EXPECT_EQ(deal.leaf(1, owner, 5), LeafDeal::kNone);
    EXPECT_EQ(deal.leaf(2, owner, 5), 6);
  }
  EXPECT_FALSE(LeafDeal().any());
}

}  // namespace
}  // namespace mcast::test
