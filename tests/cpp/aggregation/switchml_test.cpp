// SwitchML's ten test cases of its switch program (microsoft/SwitchML, its PTF tests), under their
// names. A set of a slot there corresponds to an operation here. Frames are injected below the
// stream.
#include <gtest/gtest.h>

#include "aggregation/station_world.h"

namespace mcast {
namespace {

using test::StationWorld;
using wire::Kind;

constexpr Member kRanks[] = {0, 1, 2};

class SwitchMl : public testing::Test {
 protected:
  // The window has four segments, and so has the list of each operation.
  SwitchMl() {
    for (const uint64_t seed : {1, 2}) {
      world_.call(Kind::kAllreduce, Element::kFloat32, Reduction::kSum, 3 * 4 * 4096, seed);
    }
  }
  ~SwitchMl() override { EXPECT_EQ(world_.wrong(), ""); }

  void contribute(Sequence op, uint32_t number) {
    for (const Member r : kRanks) world_.contribute(r, op, number);
    world_.take_all();
    world_.turn();
  }

  StationWorld world_{{.incast = 3 * 2 * 4096}};
};

TEST_F(SwitchMl, BasicReduction) {
  world_.open_all(0);
  ASSERT_EQ(world_.granted(0, 0), 4u);
  world_.contribute(2, 0, 0);
  world_.contribute(0, 0, 0);
  world_.take_all();
  EXPECT_EQ(world_.results(0), 0u);
  EXPECT_EQ(world_.station().job()->blocks(), 1u);
  world_.contribute(1, 0, 0);
  world_.take_all();
  EXPECT_EQ(world_.results(0), 1u);
  EXPECT_EQ(world_.station().job()->blocks(), 0u);
}

TEST_F(SwitchMl, RetransmitAfterReduction) {
  world_.open_all(0);
  contribute(0, 0);
  world_.contribute(1, 0, 0);
  world_.take_all();
  EXPECT_EQ(world_.results(0), 1u);
  EXPECT_EQ(world_.count(Counter::agg_repeated), 1u);
  EXPECT_EQ(world_.station().job()->blocks(), 0u);
}

TEST_F(SwitchMl, OtherSet) {
  world_.open_all(0);
  world_.open_all(1);
  world_.contribute_all();
  EXPECT_EQ(world_.results(0), world_.entries(0));
  EXPECT_EQ(world_.results(1), world_.entries(1));
}

TEST_F(SwitchMl, BothSets) {
  world_.open_all(0);
  world_.open_all(1);
  for (uint32_t number = 0; number + 1 < world_.entries(0); number++) contribute(0, number);
  const uint32_t last = world_.entries(0) - 1;
  ASSERT_GT(world_.granted(1, 1), 0u);
  for (const Member r : kRanks) {
    world_.contribute(r, 0, last);
    world_.contribute(r, 1, 0);
    if (r == 1) {
      EXPECT_EQ(world_.station().job()->blocks(), 2u);
    }
  }
  world_.take_all();
  EXPECT_EQ(world_.results(0), world_.entries(0));
  EXPECT_EQ(world_.results(1), 1u);
}

TEST_F(SwitchMl, SlotReuse) {
  world_.open_all(0);
  ASSERT_GT(world_.entries(0), aggregation::station_lookahead(world_.params()));
  for (uint32_t number = 0; number < world_.entries(0); number++) contribute(0, number);
  EXPECT_EQ(world_.results(0), world_.entries(0));
  EXPECT_EQ(world_.station().job()->operations(), 0u);
}

TEST_F(SwitchMl, IgnoreRetransmissions) {
  world_.open_all(0);
  for (int i = 0; i < 3; i++) world_.contribute(0, 0, 0);
  for (int i = 0; i < 3; i++) world_.contribute(2, 0, 0);
  EXPECT_EQ(world_.count(Counter::agg_repeated), 4u);
  world_.contribute(1, 0, 0);
  world_.take_all();
  EXPECT_EQ(world_.results(0), 1u);
}

TEST_F(SwitchMl, RetransmitFromPreviousSet) {
  world_.open_all(0);
  world_.open_all(1);
  for (uint32_t number = 0; number < world_.entries(0); number++) contribute(0, number);
  world_.contribute(0, 1, 0);
  world_.contribute(1, 1, 0);
  world_.contribute(2, 0, 0);  // of the previous operation, which is over
  EXPECT_EQ(world_.count(Counter::agg_stale), 1u);
  EXPECT_EQ(world_.results(1), 0u);
  world_.contribute(2, 1, 0);
  world_.take_all();
  EXPECT_EQ(world_.results(1), 1u);
}

TEST_F(SwitchMl, SlotReuseAndRetransmit) {
  world_.open_all(0);
  for (uint32_t number = 0; number < world_.entries(0); number++) {
    for (const Member r : kRanks) {
      world_.contribute(r, 0, number);
      if (number >= 4) world_.contribute(r, 0, number - 4);  // its slot now holds another segment
    }
    world_.take_all();
    world_.turn();
  }
  // The last repetition arrives after the operation is over.
  EXPECT_EQ(world_.count(Counter::agg_repeated) + world_.count(Counter::agg_stale),
            3 * (world_.entries(0) - 4));
  EXPECT_EQ(world_.results(0), world_.entries(0));
}

TEST_F(SwitchMl, ForeignTraffic) {
  world_.open_all(0);
  world_.contribute(0, 0, 0);
  wire::FrameHeader other = world_.header(1, wire::FrameType::kReduceData, 0);
  other.group_tag++;
  world_.send(1, other, world_.contribution(1, 0, 0).bytes());
  other = world_.header(1, wire::FrameType::kAggOpen, 0);
  other.group_tag++;
  world_.send(1, other, {});
  EXPECT_EQ(world_.count(Counter::foreign), 2u);
  EXPECT_FALSE(world_.station().closed());
  world_.contribute(1, 0, 0);
  world_.contribute(2, 0, 0);
  world_.take_all();
  EXPECT_EQ(world_.results(0), 1u);
}

// A worker's frames arrive by the streams of several ranks: two hosts have two ranks, one has one.
TEST(SwitchMlHosts, DifferentPorts) {
  StationWorld world({.ranks = 5, .host_of = {0, 1, 0, 1, 2}, .incast = 3 * 2 * 4096});
  for (const Reduction r : {Reduction::kAvg, Reduction::kPremulSum}) {
    for (const Element e : {Element::kFloat32, Element::kFloat16}) {
      world.open_all(world.call(Kind::kReduceScatter, e, r, 3 * 4096, 7));
    }
  }
  world.contribute_all();
  EXPECT_TRUE(world.all_done());
  EXPECT_EQ(world.wrong(), "");
}

}  // namespace
}  // namespace mcast
