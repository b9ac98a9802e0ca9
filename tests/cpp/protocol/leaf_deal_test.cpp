// LeafDeal: a rack's contributions are divided among its leaves by their capacities.
#include "protocol/leaf_deal.h"

#include <gtest/gtest.h>

namespace mcast::test {
namespace {

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

// Equal leaves begin about the same number of shards in every rank's order, so short shards are
// spread too.
TEST(LeafDeal, ShardsBeginAtDifferentLeaves) {
  const LeafDeal deal(7, {{{3, 1000}, {4, 1000}}, {{5, 1000}, {6, 1000}}});
  for (const uint32_t rack : {0u, 1u}) {
    int first = 0;
    for (Member owner = 0; owner < 256; owner++) {
      first += deal.leaf(rack, owner, 0) == 3 + 2 * rack ? 1 : 0;
    }
    EXPECT_NEAR(first, 128, 32) << rack;
  }
}

}  // namespace
}  // namespace mcast::test
