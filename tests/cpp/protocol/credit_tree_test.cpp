// CreditTree: each subtree reports its minimum to its parent.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "protocol/credit_tree.h"

namespace mcast {
namespace {

using Changed = std::vector<std::pair<uint32_t, CreditTree::Least>>;

TEST(CreditTree, NothingBeforeAllHavePostedThenEverySlotOnce) {
  CreditTree t(3, 2);
  Changed changed;
  t.post_own();
  for (uint32_t s = 0; s < 3; s++) t.set_own(s, {0, 10 + s, 0});
  t.post_child(1);
  for (uint32_t s = 0; s < 3; s++) t.set_child(1, s, {0, 5, 0});
  t.collect(changed);
  EXPECT_TRUE(changed.empty());
  EXPECT_FALSE(t.all_posted());
  t.post_child(0);
  for (uint32_t s = 0; s < 3; s++) t.set_child(0, s, {0, 7 - 2 * s, 0});
  t.collect(changed);
  ASSERT_EQ(changed.size(), 3u);
  for (const auto& [stream, least] : changed) EXPECT_EQ(least.limit, stream == 2 ? 3u : 5u);
  t.collect(changed);
  EXPECT_TRUE(changed.empty());
}

TEST(CreditTree, ReportsLeastMarkLeastLimitAndMostLost) {
  CreditTree t(1, 2);
  Changed changed;
  t.post_own();
  t.post_child(0);
  t.post_child(1);
  t.set_own(0, CreditTree::unbounded());
  t.set_child(0, 0, {4, 20, 7});
  t.set_child(1, 0, {9, 11, 2});
  t.collect(changed);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed[0].second, (CreditTree::Least{4, 11, 7}));
  t.set_child(0, 0, {30, 50, 7});
  t.collect(changed);
  EXPECT_EQ(changed[0].second, (CreditTree::Least{9, 11, 7}));
}

TEST(CreditTree, OnlyTouchedStreamsAreReported) {
  CreditTree t(100, 0);
  Changed changed;
  t.post_own();
  t.collect(changed);
  EXPECT_EQ(changed.size(), 100u);
  t.set_own(42, {1, 2, 0});
  t.set_own(42, {2, 3, 0});
  t.collect(changed);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed[0].first, 42u);
}

}  // namespace
}  // namespace mcast
