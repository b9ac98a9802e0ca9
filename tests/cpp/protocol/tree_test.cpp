// The control tree: parents, children, and the way down to a member.
#include <gtest/gtest.h>

#include "protocol/tree.h"

namespace mcast {
namespace {

TEST(Tree, ParentsChildrenAndHopsAgree) {
  for (const uint32_t arity : {2u, 3u, 4u, 32u, 1024u}) {
    for (const uint32_t size : {1u, 2u, 3u, 5u, 33u, 34u, 100u, 1057u}) {
      const Tree tree(size, arity);
      uint32_t linked = 0;
      for (uint32_t m = 0; m < size; m++) {
        const auto self = static_cast<Member>(m);
        for (uint32_t c = 0; c < tree.children(self); c++) {
          const auto child = static_cast<Member>(tree.first_child(self) + c);
          ASSERT_LT(child, size);
          EXPECT_EQ(tree.parent(child), self);
          EXPECT_EQ(tree.child_index(child), c);
          EXPECT_TRUE(tree.is_child(child, self));
          EXPECT_FALSE(tree.is_child(self, child));
          linked++;
        }
      }
      EXPECT_EQ(linked, size - 1);
    }
  }
}

TEST(Tree, EveryRouteArrives) {
  const Tree tree(50, 3);
  for (Member from = 0; from < 50; from++) {
    for (Member to = 0; to < 50; to++) {
      Member at = from;
      int hops = 0;
      while (at != to && hops++ < 20) {
        const Member next = tree.next_hop(at, to);
        ASSERT_TRUE(tree.is_child(next, at) || tree.is_child(at, next));
        at = next;
      }
      EXPECT_EQ(at, to);
    }
  }
}

TEST(Tree, LargestGroupFitsSixteenBitMembers) {
  for (const uint32_t arity : {2u, 1024u}) {
    const Tree tree(65534, arity);
    EXPECT_EQ(tree.children(65533), 0u);
    Member m = 65533;
    int up = 0;
    while (!tree.is_top(m) && up++ < 17) m = tree.parent(m);
    EXPECT_EQ(m, Tree::kTop);
    EXPECT_EQ(tree.next_hop(0, 65533), tree.next_hop(0, tree.parent(65533)));
    uint64_t linked = 0;
    for (uint32_t i = 0; i < 65534; i++) linked += tree.children(static_cast<Member>(i));
    EXPECT_EQ(linked, 65533u);
  }
}

}  // namespace
}  // namespace mcast
