// ReduceOwner folds contributions in the agreed order, whatever the order of their arrival.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/reduce_kernels.h"
#include "protocol/fold_values.h"
#include "protocol/reduce_owner.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

Block noise(size_t bytes, uint64_t seed) {
  Block block(bytes);
  Rng rng(seed);
  // Floats of moderate size, so that another order of additions gives other bits.
  for (size_t i = 0; i + 4 <= bytes; i += 4) {
    const float value = static_cast<float>(rng.below(1'000'000)) / 977.0f - 400.0f;
    std::memcpy(block.data() + i, &value, 4);
  }
  return block;
}

struct Fold {
  ReduceShape shape;
  std::vector<Block> inputs;

  Fold(uint32_t members, Member self, size_t bytes, size_t segment, uint32_t window) {
    shape.members = members;
    shape.self = self;
    shape.bytes = bytes;
    shape.segment = segment;
    shape.window = window;
    for (uint32_t m = 0; m < members; m++) inputs.push_back(noise(bytes, m + 1));
  }

  ConstBytes part(Member m, uint32_t segment) const {
    const size_t at = segment * shape.segment;
    return ConstBytes(inputs[m]).subspan(at, std::min(shape.segment, shape.bytes - at));
  }

  Block reference() const {
    const uint32_t first = shape.order == FoldOrder::kTurn ? (shape.self + 1u) % shape.members : 0;
    Block acc = inputs[first];
    const size_t count = shape.bytes / 4;
    for (uint32_t i = 1; i < shape.members; i++) {
      const uint32_t m = (first + i) % shape.members;
      fold_next(shape.element, shape.reduction, 1, inputs[m].data(), acc.data(), count);
    }
    fold_finish(shape.element, shape.reduction, shape.members, acc.data(), acc.data(), count);
    return acc;
  }
};

void any_arrival_gives_the_bits_of(FoldOrder order) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const auto members = static_cast<uint32_t>(2 + rng.below(5));
    Fold f(members, static_cast<Member>(rng.below(members)), 4 * (1 + rng.below(3000)),
           64 * (1 + rng.below(20)), static_cast<uint32_t>(1 + rng.below(5)));
    f.shape.order = order;
    BufferPool pool;
    const bool in_place = rng.chance(0.5);
    const Block want = f.reference();
    Block out(f.shape.bytes, std::byte{0x77});
    std::byte* to = in_place ? f.inputs[f.shape.self].data() : out.data();
    ReduceOwner owner(f.shape, f.inputs[f.shape.self].data(), to, pool);
    std::vector<uint32_t> sent(members);
    owner.grant(f.shape.window);
    while (!owner.complete()) {
      const auto m = static_cast<Member>(rng.below(members));
      if (m != f.shape.self && sent[m] < owner.granted()) {
        ASSERT_TRUE(owner.accept(m, sent[m], 1, f.part(m, sent[m])));
        sent[m]++;
      }
      if (rng.chance(0.3)) owner.grant(owner.folded() + f.shape.window);
      ASSERT_LE(owner.granted(), owner.folded() + f.shape.window);
      // Bytes that are reported as final are final.
      ASSERT_EQ(std::memcmp(to, want.data(), owner.final_bytes()), 0) << seed;
    }
    EXPECT_EQ(owner.final_bytes(), f.shape.bytes);
  }
}

TEST(ReduceOwner, AnyArrivalGivesTheBitsOfRankOrder) {
  any_arrival_gives_the_bits_of(FoldOrder::kRank);
}

TEST(ReduceOwner, AnyArrivalGivesTheBitsOfTheTurn) {
  any_arrival_gives_the_bits_of(FoldOrder::kTurn);
}

TEST(ReduceOwner, TakesOnlyWholeGrantedSegmentsInOrder) {
  Fold f(3, 1, 1000, 256, 2);
  BufferPool pool;
  Block out(1000);
  ReduceOwner owner(f.shape, f.inputs[1].data(), out.data(), pool);
  EXPECT_EQ(owner.listed(), 4u);
  EXPECT_FALSE(owner.accept(0, 0, 1, f.part(0, 0))) << "not granted";
  owner.grant(100);
  EXPECT_EQ(owner.granted(), 2u) << "the window bounds a grant";
  EXPECT_FALSE(owner.accept(0, 1, 1, f.part(0, 1))) << "not the next";
  EXPECT_FALSE(owner.accept(0, 0, 1, f.part(0, 0).first(255))) << "short";
  EXPECT_FALSE(owner.accept(1, 0, 1, f.part(1, 0))) << "our own";
  EXPECT_FALSE(owner.accept(3, 0, 1, f.part(0, 0))) << "no member";
  EXPECT_TRUE(owner.accept(0, 0, 1, f.part(0, 0)));
  EXPECT_FALSE(owner.accept(0, 0, 1, f.part(0, 0))) << "twice";
  EXPECT_EQ(owner.folded(), 0u);
  EXPECT_TRUE(owner.accept(2, 0, 1, f.part(2, 0)));
  EXPECT_EQ(owner.folded(), 1u);
  EXPECT_EQ(owner.final_bytes(), 256u);
}

TEST(ReduceOwner, WaitsForItsOwnStagedInput) {
  Fold f(2, 0, 512, 256, 2);
  f.shape.own_ready = 0;
  BufferPool pool;
  Block out(512);
  ReduceOwner owner(f.shape, f.inputs[0].data(), out.data(), pool);
  owner.grant(2);
  EXPECT_TRUE(owner.accept(1, 0, 1, f.part(1, 0)));
  EXPECT_TRUE(owner.accept(1, 1, 1, f.part(1, 1)));
  EXPECT_EQ(owner.folded(), 0u);
  owner.own_ready(300);
  EXPECT_EQ(owner.folded(), 1u);
  owner.own_ready(512);
  EXPECT_TRUE(owner.complete());
  EXPECT_EQ(out, f.reference());
}

TEST(ReduceOwner, AloneOrEmptyIsCompleteAtOnce) {
  Fold alone(1, 0, 1000, 256, 2);
  BufferPool pool;
  Block out(1000);
  ReduceOwner one(alone.shape, alone.inputs[0].data(), out.data(), pool);
  EXPECT_TRUE(one.complete());
  EXPECT_EQ(out, alone.inputs[0]);
  Fold empty(4, 2, 0, 256, 2);
  ReduceOwner none(empty.shape, nullptr, nullptr, pool);
  EXPECT_TRUE(none.complete());
}

TEST(ReduceOwner, StagingIsBoundedByTheWindow) {
  Fold f(4, 3, 64 * 256, 256, 3);
  BufferPool pool;
  Block out(f.shape.bytes);
  ReduceOwner owner(f.shape, f.inputs[3].data(), out.data(), pool);
  owner.grant(64);
  // Member 0 is late: everything that the others may send is staged.
  for (const Member m : {Member{1}, Member{2}}) {
    uint32_t s = 0;
    while (owner.accept(m, s, 1, f.part(m, s))) s++;
    EXPECT_EQ(s, 3u);
  }
  EXPECT_EQ(owner.folded(), 0u);
}

// A segment's fold without our contribution, with elements of four bytes.
Block without_own(Fold& f, uint32_t segment) {
  Block sum;
  for (Member m = 0; m < f.shape.members; m++) {
    if (m == f.shape.self) continue;
    const ConstBytes part = f.part(m, segment);
    if (sum.empty()) {
      sum.assign(part.begin(), part.end());
    } else {
      fold_next(f.shape.element, f.shape.reduction, 1, part.data(), sum.data(), part.size() / 4);
    }
  }
  return sum;
}

// Some segments are folded elsewhere: their results are placed when they arrive, whole or without
// our contribution, or they never arrive and the owner takes over. The bits are the same.
TEST(ReduceOwner, PlacesResultsFoldedElsewhereOrTakesOver) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const auto members = static_cast<uint32_t>(3 + rng.below(4));
    const auto self = static_cast<Member>(rng.below(members));
    const bool kept = rng.chance(0.5);
    Fold f(members, self, 4 * (200 + rng.below(3000)), 64 * (1 + rng.below(8)),
           static_cast<uint32_t>(1 + rng.below(5)));
    f.shape.element = Element::kInt32;  // integers: any order gives the same bits
    const Block want = f.reference();
    const auto segments =
        static_cast<uint32_t>((f.shape.bytes + f.shape.segment - 1) / f.shape.segment);
    std::vector<uint32_t> elsewhere, list;
    for (uint32_t i = 0; i < segments; i++) (rng.chance(0.6) ? elsewhere : list).push_back(i);
    f.shape.list = list;
    BufferPool pool;
    const Block own = f.inputs[self];
    std::byte* const out = f.inputs[self].data();  // in place
    ReduceOwner owner(f.shape, out, out, pool);
    std::vector<uint32_t> sent(members);
    while (!owner.complete()) {
      if (!elsewhere.empty() && rng.chance(0.3)) {
        const size_t at = rng.below(elsewhere.size());
        const uint32_t segment = elsewhere[at];
        const size_t first = segment * f.shape.segment;
        const size_t bytes = std::min(f.shape.segment, f.shape.bytes - first);
        elsewhere.erase(elsewhere.begin() + static_cast<ptrdiff_t>(at));
        ASSERT_TRUE(owner.awaits(segment));
        if (rng.chance(0.3)) {
          owner.take_over(segment);
          ASSERT_FALSE(owner.place_result(segment, ConstBytes(want).subspan(first, bytes)));
        } else if (kept) {
          ASSERT_FALSE(owner.place_partial(segment, {}, ConstBytes(own).subspan(first, bytes)));
          ASSERT_TRUE(owner.place_partial(segment, without_own(f, segment),
                                          ConstBytes(own).subspan(first, bytes)));
        } else {
          ASSERT_FALSE(owner.place_result(segment, {})) << "of another length";
          ASSERT_TRUE(owner.place_result(segment, ConstBytes(want).subspan(first, bytes)));
        }
        ASSERT_FALSE(owner.awaits(segment));
      }
      if (rng.chance(0.3)) owner.grant(owner.folded() + f.shape.window);
      const auto m = static_cast<Member>(rng.below(members));
      if (m == self || sent[m] >= owner.granted()) continue;
      const uint32_t place = sent[m]++;
      ASSERT_TRUE(owner.accept(m, place, 1, f.part(m, owner.segment_at(place))));
      ASSERT_EQ(std::memcmp(out, want.data(), owner.final_bytes()), 0);
    }
    EXPECT_EQ(owner.final_bytes(), f.shape.bytes);
    EXPECT_EQ(f.inputs[self], want);
  }
}

}  // namespace
}  // namespace mcast::test
