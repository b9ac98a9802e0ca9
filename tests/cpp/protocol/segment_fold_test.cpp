// SegmentFold: the bits depend on the given order, never on the order of arrival.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/fold_order.h"
#include "protocol/fold_values.h"
#include "protocol/segment_fold.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr Element kElements[] = {Element::kFloat64,    Element::kFloat32,   Element::kFloat16,
                                 Element::kBFloat16,   Element::kInt64,     Element::kInt32,
                                 Element::kInt16,      Element::kInt8,      Element::kUInt8,
                                 Element::kBool,       Element::kUInt32,    Element::kUInt64,
                                 Element::kFloat8E4M3, Element::kFloat8E5M2};
constexpr Reduction kReductions[] = {Reduction::kSum,   Reduction::kAvg,    Reduction::kProduct,
                                     Reduction::kMin,   Reduction::kMax,    Reduction::kBitAnd,
                                     Reduction::kBitOr, Reduction::kBitXor, Reduction::kPremulSum};

struct Case {
  FoldRule rule;
  uint32_t contributors;
  size_t count;
  std::vector<Block> inputs;
  std::vector<double> factors;

  Case(Element e, Reduction r, uint32_t k, Rng& rng)
      : rule{e, r, k + static_cast<uint32_t>(rng.below(3))},
        contributors(k),
        count(1 + rng.below(70)) {
    for (uint32_t c = 0; c < k; c++) {
      inputs.push_back(fold_values(e, count, rng));
      factors.push_back(r == Reduction::kPremulSum ? 0.25 + rng.unit() : 1);
    }
  }
  size_t bytes() const { return count * element_size(rule.element); }
  size_t accumulator() const { return rule.accumulator_bytes(bytes()); }

  // Adds one contribution after the other in the run's order, without SegmentFold.
  Block sum(const FoldRun& run) const {
    Block acc(accumulator());
    for (uint32_t i = 0; i < run.count; i++) {
      const uint32_t c = (run.first + i) % contributors;
      (i == 0 ? fold_first : fold_next)(rule.element, rule.reduction, factors[c], inputs[c].data(),
                                        acc.data(), count);
    }
    return acc;
  }
  Block result(const FoldRun& run) const {
    Block out(bytes());
    fold_finish(rule.element, rule.reduction, rule.divisor, sum(run).data(), out.data(), count);
    return out;
  }
};

// Adds all contributions in any order; those outside the run are refused.
void feed(SegmentFold& fold, const Case& c, const FoldRun& run, uint32_t folded, Rng& rng) {
  for (const uint32_t m : shuffled(c.contributors, rng)) {
    const uint32_t place = (m + c.contributors - run.first) % c.contributors;
    const bool wanted = place < run.count && place >= folded;
    ASSERT_EQ(fold.has(m), place < folded);
    ASSERT_FALSE(fold.add(m, 1, ConstBytes(c.inputs[m]).first(c.bytes() - 1))) << "short";
    const uint32_t before = fold.folded();
    const bool in_turn = fold.in_turn(m);
    ASSERT_EQ(fold.add(m, c.factors[m], c.inputs[m]), wanted);
    ASSERT_EQ(fold.folded() > before, in_turn);
    ASSERT_FALSE(fold.add(m, c.factors[m], c.inputs[m])) << "twice";
  }
}

template <typename Fn>
void for_all_types(Fn&& fn) {
  for (const Element e : kElements) {
    for (const Reduction r : kReductions) {
      if (reducible(e, r)) fn(e, r);
    }
  }
}

TEST(SegmentFold, TheBitsAreThoseOfTheOrder) {
  for (const uint64_t seed : seeds(40)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    BufferPool pool;
    const auto k = static_cast<uint32_t>(1 + rng.below(9));
    SegmentFold fold(k, pool);  // one for all: no state of a segment may remain
    for_all_types([&](Element e, Reduction r) {
      const Case c(e, r, k, rng);
      const FoldRun run{first_folded(rng.chance(0.5) ? FoldOrder::kTurn : FoldOrder::kRank,
                                     static_cast<uint32_t>(rng.below(k)), k),
                        k};
      Block acc(c.accumulator()), out(c.bytes());
      fold.begin(c.rule, run, c.bytes(), acc.data());
      feed(fold, c, run, 0, rng);
      ASSERT_TRUE(fold.complete());
      fold.finish(out.data());
      EXPECT_EQ(out, c.result(run)) << element_name(e) << " " << reduction_name(r);
    });
  }
}

// Folding hosts' accumulated sums gives the same bits as folding their inputs in that order.
TEST(SegmentFold, WideContributionsAreFoldedAsTheyWereAccumulated) {
  for (const uint64_t seed : seeds(40)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    BufferPool pool;
    const auto k = static_cast<uint32_t>(1 + rng.below(7));
    SegmentFold fold(k, pool);
    for_all_types([&](Element e, Reduction r) {
      if (r == Reduction::kPremulSum) return;  // hosts have multiplied already
      const Case c(e, r, k, rng);
      std::vector<Block> wide(k, Block(c.accumulator()));
      for (uint32_t i = 0; i < k; i++) {
        fold_first(e, r, 1, c.inputs[i].data(), wide[i].data(), c.count);
      }
      FoldRule rule = c.rule;
      rule.wide = true;
      Block acc(c.accumulator()), out(c.bytes());
      fold.begin(rule, {0, k}, c.bytes(), acc.data());
      for (const uint32_t m : shuffled(k, rng)) {
        EXPECT_EQ(c.accumulator() == c.bytes(), fold.add(m, 1, c.inputs[m]));
        EXPECT_EQ(c.accumulator() != c.bytes(), fold.add(m, 1, wide[m]));
      }
      ASSERT_TRUE(fold.complete());
      fold.finish(out.data());
      EXPECT_EQ(out, c.result({0, k})) << element_name(e) << " " << reduction_name(r);
    });
  }
}

// A segment that a station starts and its owner completes has the bits of the owner's fold alone:
// with the owner last in its own order, or in any order where the order does not matter.
TEST(SegmentFold, APartialResultIsGoneOnWithElsewhere) {
  for (const uint64_t seed : seeds(40)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    BufferPool pool;
    const auto k = static_cast<uint32_t>(2 + rng.below(8));
    const auto owner = static_cast<uint32_t>(rng.below(k));
    SegmentFold station(k, pool), at_owner(k, pool);
    for_all_types([&](Element e, Reduction r) {
      const Case c(e, r, k, rng);
      const FoldRun all{first_folded(FoldOrder::kTurn, owner, k), k};
      const FoldRun others{all.first, k - 1};
      Block acc(c.accumulator()), out(c.bytes());
      station.begin(c.rule, others, c.bytes(), acc.data());
      feed(station, c, others, 0, rng);
      ASSERT_TRUE(station.complete());
      EXPECT_TRUE(std::ranges::equal(station.partial(), c.sum(others)));

      Block taken(station.partial().begin(), station.partial().end());
      at_owner.begin(c.rule, all, c.bytes(), taken.data(), k - 1);
      EXPECT_FALSE(at_owner.complete());
      feed(at_owner, c, all, k - 1, rng);
      ASSERT_TRUE(at_owner.complete());
      at_owner.finish(out.data());
      EXPECT_EQ(out, c.result(all)) << element_name(e) << " " << reduction_name(r);
      EXPECT_TRUE(!exact(c.rule) || out == c.result({0, k})) << "the order shows";
    });
  }
}

TEST(SegmentFold, ExactTypesWaitForNobody) {
  BufferPool pool;
  SegmentFold fold(3, pool);
  int32_t acc = 0;
  const int32_t x[] = {1 << 30, 1 << 30, 7};
  const auto bytes = [&](int i) { return std::as_bytes(std::span(&x[i], 1)); };
  fold.begin({Element::kInt32, Reduction::kSum, 1}, {0, 3}, 4, reinterpret_cast<std::byte*>(&acc));
  for (const int i : {2, 0, 1}) {
    EXPECT_TRUE(fold.in_turn(static_cast<uint32_t>(i)));
    EXPECT_TRUE(fold.add(static_cast<uint32_t>(i), 1, bytes(i)));
    EXPECT_TRUE(fold.has(static_cast<uint32_t>(i)));
  }
  EXPECT_TRUE(fold.complete());
  EXPECT_EQ(acc, static_cast<int32_t>(0x80000007u));
  EXPECT_EQ(pool.held(), 0u) << "a buffer was used";
}

TEST(SegmentFold, BuffersGoRound) {
  BufferPool pool;
  Rng rng(1);
  const Case c(Element::kFloat32, Reduction::kSum, 4, rng);
  {
    SegmentFold fold(4, pool);
    Block acc(c.accumulator());
    for (int segment = 0; segment < 10; segment++) {
      fold.begin(c.rule, {0, 4}, c.bytes(), acc.data());
      for (const uint32_t m : {3u, 2u, 1u}) EXPECT_TRUE(fold.add(m, 1, c.inputs[m]));
      EXPECT_EQ(fold.folded(), 0u);
      EXPECT_EQ(pool.held(), 0u);
      EXPECT_TRUE(fold.add(0, 1, c.inputs[0]));
      EXPECT_TRUE(fold.complete());
      EXPECT_EQ(pool.held(), 3u);
    }
    // A segment that is abandoned.
    fold.begin(c.rule, {0, 4}, c.bytes(), acc.data());
    EXPECT_TRUE(fold.add(1, 1, c.inputs[1]));
    fold.begin(c.rule, {0, 4}, c.bytes(), acc.data());
    EXPECT_FALSE(fold.has(1));
    EXPECT_EQ(pool.held(), 3u);
    EXPECT_TRUE(fold.add(2, 1, c.inputs[2]));
  }
  EXPECT_EQ(pool.held(), 3u);
}

// Contributors are excluded at any moment before they contribute: the result is the fold of the
// others.
TEST(SegmentFold, GoesOnWithoutThoseThatAreExcused) {
  for (const uint64_t seed : seeds(300)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const Element e = kElements[rng.below(std::size(kElements))];
    Reduction r;
    do {
      r = kReductions[rng.below(std::size(kReductions))];
    } while (!reducible(e, r));
    Case all(e, r, static_cast<uint32_t>(2 + rng.below(7)), rng);
    const FoldRun run{static_cast<uint32_t>(rng.below(all.contributors)),
                      all.contributors - static_cast<uint32_t>(rng.below(2))};
    // The contributors that are present, in the order of the run.
    std::vector<uint32_t> present, events;
    for (uint32_t i = 0; i < run.count; i++) {
      const uint32_t c = (run.first + i) % all.contributors;
      events.push_back(c);
      if (rng.chance(0.6) || (present.empty() && i + 1 == run.count)) present.push_back(c);
    }
    for (size_t i = events.size(); i > 1; i--) std::swap(events[i - 1], events[rng.below(i)]);
    BufferPool pool;
    SegmentFold fold(all.contributors, pool);
    Block accumulator(all.accumulator()), out(all.bytes());
    fold.begin(all.rule, run, all.bytes(), accumulator.data());
    fold.divide_by(static_cast<uint32_t>(present.size()));
    for (const uint32_t c : events) {
      EXPECT_FALSE(fold.complete());
      if (std::find(present.begin(), present.end(), c) != present.end()) {
        EXPECT_TRUE(fold.add(c, all.factors[c], all.inputs[c]));
        EXPECT_FALSE(fold.excuse(c)) << "it has come";
      } else {
        EXPECT_TRUE(fold.excuse(c));
        EXPECT_TRUE(fold.excuse(c));
        EXPECT_FALSE(fold.add(c, all.factors[c], all.inputs[c]));
      }
    }
    ASSERT_TRUE(fold.complete());
    EXPECT_TRUE(fold.excuse(all.contributors)) << "there is no such one";
    fold.finish(out.data());
    Case others = all;
    others.contributors = static_cast<uint32_t>(present.size());
    others.rule.divisor = others.contributors;
    for (size_t i = 0; i < present.size(); i++) {
      others.inputs[i] = all.inputs[present[i]];
      others.factors[i] = all.factors[present[i]];
    }
    EXPECT_EQ(out, others.result({0, others.contributors}));
  }
}

}  // namespace
}  // namespace mcast::test
