// ReduceSender: which segment goes to which owner next.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "protocol/reduce_sender.h"

namespace mcast::test {
namespace {

using List = ReduceSender::List;

std::vector<List> whole(std::initializer_list<uint32_t> segments) {
  std::vector<List> lists;
  for (const uint32_t n : segments) lists.push_back(List::whole(n));
  return lists;
}

bool any_entry(uint32_t, const ReduceSender::Entry&) { return true; }

TEST(ReduceSender, FeedsAllOwnersSegmentBySegment) {
  ReduceSender sender(1, whole({3, 0, 3, 2}), true);
  std::vector<std::pair<int, int>> order;
  while (const auto next = sender.next(any_entry)) {
    order.emplace_back(next->entry.owner, next->entry.segment);
    sender.sent(next->list);
  }
  EXPECT_TRUE(sender.done());
  const std::vector<std::pair<int, int>> want = {{2, 0}, {3, 0}, {0, 0}, {2, 1},
                                                 {3, 1}, {0, 1}, {2, 2}, {0, 2}};
  EXPECT_EQ(order, want);
}

TEST(ReduceSender, AnOwnerThatGrantsNothingHoldsUpOnlyItself) {
  ReduceSender sender(0, whole({0, 4, 4}), false);
  EXPECT_FALSE(sender.next(any_entry));
  EXPECT_TRUE(sender.on_grant(2, 4));
  EXPECT_TRUE(sender.on_grant(2, 1)) << "an older grant is no news";
  EXPECT_FALSE(sender.on_grant(2, 5)) << "more than there is";
  EXPECT_FALSE(sender.on_grant(0, 1)) << "our own block";
  EXPECT_FALSE(sender.on_grant(9, 1)) << "no member";
  for (uint32_t s = 0; s < 4; s++) {
    const auto next = sender.next(any_entry);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->entry.owner, 2);
    EXPECT_EQ(next->entry.segment, s);
    EXPECT_EQ(next->entry.number, s);
    sender.sent(2);
  }
  EXPECT_FALSE(sender.next(any_entry));
  EXPECT_FALSE(sender.done());
  EXPECT_TRUE(sender.on_grant(1, 4));
  EXPECT_FALSE(sender.next([](uint32_t list, const ReduceSender::Entry&) { return list != 1; }))
      << "its queue is full";
}

// Two members beside us and a station, which has segment 1 of both; segment 1 of owner 2 is not
// ours to contribute to.
TEST(ReduceSender, ChoosingDoesNotLookAtEveryOwner) {
  std::vector<List> lists(1000, List::whole(4));
  lists[0] = List::whole(0);
  ReduceSender sender(0, lists, true);
  uint64_t sent = 0;
  while (const auto next = sender.next(any_entry)) {
    EXPECT_EQ(next->entry.segment, sent / 999);
    EXPECT_EQ(next->list, sent % 999 + 1);
    sender.sent(next->list);
    sent++;
  }
  EXPECT_EQ(sent, 4 * 999u);
  EXPECT_EQ(sender.looks(), sent);
}

TEST(ReduceSender, ListsOfStationsAreServedLikeOwners) {
  ReduceSender sender(0,
                      {List{}, List{{{1, 0, 0}, {1, 2, 1}}, 2}, List{{{2, 0, 0}, {2, 2, 1}}, 2},
                       List{{{1, 1, 1}}, 2}},
                      false);
  EXPECT_FALSE(sender.pending());
  EXPECT_FALSE(sender.on_grant(3, 3)) << "more than the station has";
  EXPECT_TRUE(sender.on_grant(1, 2));
  EXPECT_TRUE(sender.on_grant(2, 2));
  EXPECT_TRUE(sender.on_grant(3, 1)) << "the first is another's";
  EXPECT_TRUE(sender.pending());
  std::vector<std::pair<uint32_t, uint32_t>> order;
  for (int i = 0; i < 3; i++) {
    const auto next = sender.next(any_entry);
    ASSERT_TRUE(next);
    order.emplace_back(next->list, next->entry.segment);
    sender.sent(next->list);
    if (i == 1) sender.on_grant(3, 2);
  }
  EXPECT_EQ(order, (std::vector<std::pair<uint32_t, uint32_t>>{{1, 0}, {2, 0}, {3, 1}}));
}

TEST(ReduceSender, AListGrowsAndAnotherIsDropped) {
  ReduceSender sender(0, {List{}, List{{{1, 0, 0}}, 1}, List{{{1, 1, 0}, {1, 2, 1}}, 2}}, false);
  EXPECT_TRUE(sender.on_grant(1, 1));
  EXPECT_TRUE(sender.on_grant(2, 1));
  sender.sent(1);
  sender.sent(2);
  sender.drop(2);
  EXPECT_TRUE(sender.done()) << "what was left there is not to be sent";
  EXPECT_TRUE(sender.on_grant(2, 2)) << "a late grant";
  EXPECT_FALSE(sender.pending());
  EXPECT_FALSE(sender.on_grant(1, 2));
  sender.append(1, 1);
  sender.append(1, 2);
  EXPECT_FALSE(sender.done());
  EXPECT_TRUE(sender.on_grant(1, 3));
  for (const uint32_t segment : {1u, 2u}) {
    const auto next = sender.next(any_entry);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->list, 1u);
    EXPECT_EQ(next->entry.segment, segment);
    EXPECT_EQ(next->entry.number, segment);
    sender.sent(1);
  }
  EXPECT_TRUE(sender.done());
}

}  // namespace
}  // namespace mcast::test
