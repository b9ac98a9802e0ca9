// Contents of large reductions: the result is the plain sum in the right order, errors are found,
// and worlds whose ranks have ledgers reduce over them with every type and order.
#include "sim/world/contributions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "sim/world/world.h"
#include "support/world.h"

namespace mcast::test {
namespace {

using sim::Contributions;
using wire::Kind;

constexpr uint32_t kRanks = 5;
constexpr size_t kVector = kRanks * 500'000;  // longer than the period of the contents

Contributions::Shape shape_of(bool in_turn, Kind kind = Kind::kAllreduce) {
  return {kind, 7, kRanks, kVector, Element::kFloat32, Reduction::kSum, in_turn};
}

float at(const std::byte* bytes, size_t i) {
  float value = 0;
  std::memcpy(&value, bytes + i * 4, 4);
  return value;
}

TEST(Contributions, AreSummedFromTheFirstOrFromTheOneAfterTheOwner) {
  for (const bool in_turn : {false, true}) {
    const Contributions all(shape_of(in_turn));
    const size_t part = kVector / kRanks / 4;
    for (size_t i = 0; i < kVector / 4; i += 97) {
      const auto owner = static_cast<uint32_t>(i / part);
      float sum = 0;
      for (uint32_t k = 0; k < kRanks; k++) {
        const uint32_t rank = in_turn ? (owner + 1 + k) % kRanks : k;
        const float value = at(all.input(rank, 0, kVector).data(), i);
        sum = k == 0 ? value : sum + value;
      }
      ASSERT_EQ(at(all.result()->stream(owner).data(), i - owner * part), sum) << i;
    }
  }
}

TEST(Contributions, AnotherOrderAndAnotherOperationGiveOtherBits) {
  const Contributions all(shape_of(false)), turned(shape_of(true));
  Contributions::Shape other = shape_of(false);
  other.op = 8;
  const Contributions later(other);
  EXPECT_EQ(all.verdict(1, all.result()->stream(1).data()), "");
  EXPECT_NE(all.verdict(1, turned.result()->stream(1).data()), "");
  EXPECT_NE(all.verdict(1, later.result()->stream(1).data()), "");
  EXPECT_NE(all.verdict(1, all.result()->stream(2).data()), "");
  EXPECT_NE(all.input(0, 0, 64).data(), all.input(1, 0, 64).data());
  std::vector<std::byte> copy(all.result()->block());
  std::copy_n(all.result()->stream(3).data(), copy.size(), copy.data());
  copy[12345] ^= std::byte{1};
  EXPECT_THAT(all.verdict(3, copy.data()), testing::HasSubstr("wrong byte 12345 "));
}

TEST(Contributions, ServeShapesWithEqualParts) {
  Contributions::Shape shape = shape_of(false);
  EXPECT_TRUE(Contributions::serve(shape));
  shape.bytes += 4;
  EXPECT_FALSE(Contributions::serve(shape));
  shape = shape_of(false);
  shape.element = Element::kFloat64;
  EXPECT_FALSE(Contributions::serve(shape));
}

TEST(ContributionsDeathTest, WriteToAnInputEndsTheProcess) {
  const Contributions all(shape_of(false));
  EXPECT_DEATH(*all.input(0, 0, 64).data() = std::byte{1}, "");
}

TEST(World, LedgersOfReductionsAreFilledWithTheRightBits) {
  for (const char* fold : {"rank", "turn"}) {
    for (const Element element : {Element::kFloat32, Element::kBFloat16, Element::kInt32}) {
      SCOPED_TRACE(fold);
      sim::WorldSpec spec = world_of(6, "leafspine:leaves=2,spines=2");
      spec.ledgers = true;
      spec.config.fold = fold;
      sim::World world(spec);
      const auto g = world.make_group();
      ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
      lose(world, 3e-3);
      Outcomes all;
      uint64_t id = 0;
      for (const size_t bytes : {1'200'000u, 960u, 1'200'004u}) {
        for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter}) {
          sim::Operation op;
          op.kind = kind;
          op.id = ++id;
          op.bytes = kind == Kind::kAllreduce ? bytes : bytes / 24 * 4;
          op.how = {element, Reduction::kSum, 1};
          for (auto& one : world.post_all(g, op)) all.push_back(std::move(one));
        }
      }
      ASSERT_TRUE(world.run([&] { return all_over(all); }, 60 * kSecond));
      for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
      EXPECT_GT(world.total(g, Counter::repair_chunks_received), 0u);
    }
  }
}

}  // namespace
}  // namespace mcast::test
