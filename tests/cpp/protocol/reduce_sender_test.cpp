// ReduceSender: which segment goes to which owner next.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "protocol/reduce_sender.h"

namespace mcast::test {
namespace {

TEST(ReduceSender, FeedsAllOwnersSegmentBySegment) {
  ReduceSender sender(1, {3, 3, 3, 2}, true);
  std::vector<std::pair<int, int>> order;
  while (const auto next = sender.next([](Member, uint32_t) { return true; })) {
    order.emplace_back(next->owner, next->segment);
    sender.sent(next->owner);
  }
  EXPECT_TRUE(sender.done());
  const std::vector<std::pair<int, int>> want = {{2, 0}, {3, 0}, {0, 0}, {2, 1},
                                                 {3, 1}, {0, 1}, {2, 2}, {0, 2}};
  EXPECT_EQ(order, want);
}

TEST(ReduceSender, AnOwnerThatGrantsNothingHoldsUpOnlyItself) {
  ReduceSender sender(0, {4, 4, 4}, false);
  const auto any = [](Member, uint32_t) { return true; };
  EXPECT_FALSE(sender.next(any));
  EXPECT_TRUE(sender.on_grant(2, 4));
  EXPECT_TRUE(sender.on_grant(2, 1)) << "an older grant is no news";
  EXPECT_FALSE(sender.on_grant(2, 5)) << "more than there is";
  EXPECT_FALSE(sender.on_grant(0, 1)) << "our own block";
  EXPECT_FALSE(sender.on_grant(9, 1)) << "no member";
  for (uint32_t s = 0; s < 4; s++) {
    const auto next = sender.next(any);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->owner, 2);
    EXPECT_EQ(next->segment, s);
    sender.sent(2);
  }
  EXPECT_FALSE(sender.next(any));
  EXPECT_FALSE(sender.done());
  EXPECT_TRUE(sender.on_grant(1, 4));
  EXPECT_FALSE(sender.next([](Member owner, uint32_t) { return owner != 1; }))
      << "its queue is full";
}

}  // namespace
}  // namespace mcast::test
