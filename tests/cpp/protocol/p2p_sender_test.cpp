// P2pSender: data sent unasked, grants, accounts.
#include "protocol/p2p_sender.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "protocol/p2p_values.h"

namespace mcast::test {
namespace {

TEST(P2pSender, AShortMessageLeavesWithItsHead) {
  P2pSender s(p2p_params());
  EXPECT_TRUE(s.idle());
  s.post(5, 7, 10);
  s.post(6, 8, 0);
  auto p = s.next(all_readable);
  ASSERT_TRUE(p);
  EXPECT_TRUE(p->head);
  EXPECT_EQ(p->id, 5u);
  EXPECT_EQ(p->tag, 7u);
  EXPECT_EQ(p->number, 0u);
  EXPECT_EQ(p->bytes, 10u);
  EXPECT_TRUE(s.sent(*p));
  p = s.next(all_readable);
  ASSERT_TRUE(p) << "an empty one has a head, too";
  EXPECT_EQ(p->number, 1u);
  EXPECT_EQ(p->bytes, 0u);
  EXPECT_TRUE(s.sent(*p));
  EXPECT_TRUE(s.idle());
  EXPECT_FALSE(s.may_send());
}

TEST(P2pSender, TheRestOfALongOneLeavesAsFarAsGranted) {
  P2pSender s(p2p_params());
  s.post(5, 0, 100);
  EXPECT_FALSE(s.sent(*s.next(all_readable)));
  EXPECT_FALSE(s.next(all_readable));
  EXPECT_FALSE(s.on_grant(1, 50)) << "there is no such message";
  EXPECT_FALSE(s.on_grant(0, 10)) << "no news";
  EXPECT_FALSE(s.on_grant(0, 101)) << "there is no such byte";
  ASSERT_TRUE(s.on_grant(0, 50));
  EXPECT_FALSE(s.next([](uint64_t) { return 10; })) << "it cannot be read yet";
  auto p = s.next([](uint64_t) { return 15; });
  ASSERT_TRUE(p);
  EXPECT_FALSE(p->head);
  EXPECT_EQ(p->offset, 10u);
  EXPECT_EQ(p->bytes, 5u);
  EXPECT_FALSE(s.sent(*p));
  p = s.next(all_readable);
  EXPECT_EQ(p->bytes, 30u) << "a piece";
  EXPECT_FALSE(s.sent(*p));
  EXPECT_FALSE(s.sent(*s.next(all_readable)));
  EXPECT_FALSE(s.next(all_readable));
  EXPECT_FALSE(s.idle());
  ASSERT_TRUE(s.on_grant(0, 100));
  EXPECT_FALSE(s.sent(*s.next(all_readable)));
  EXPECT_TRUE(s.sent(*s.next(all_readable)));
  EXPECT_TRUE(s.idle());
  EXPECT_FALSE(s.on_grant(0, 100)) << "it is over";
}

TEST(P2pSender, BeyondTheAccountOnlyHeadsLeave) {
  P2pSender s(p2p_params());
  for (uint64_t id = 0; id < 4; id++) s.post(id, 0, 10);
  std::vector<uint64_t> bytes;
  while (const auto p = s.next(all_readable)) {
    bytes.push_back(p->bytes);
    s.sent(*p);
  }
  EXPECT_EQ(bytes, (std::vector<uint64_t>{10, 10, 0, 0}));
  EXPECT_FALSE(s.on_credit(5, 0)) << "more than were sent";
  EXPECT_FALSE(s.on_credit(2, 21)) << "likewise";
  ASSERT_TRUE(s.on_credit(2, 20));
  EXPECT_FALSE(s.on_credit(1, 20)) << "less than before";
  s.post(4, 0, 10);
  EXPECT_EQ(s.next(all_readable)->bytes, 10u);
  EXPECT_EQ(s.next([](uint64_t) { return 9; })->bytes, 0u) << "all of these bytes or none";
}

TEST(P2pSender, HeadsWaitWhereTooManyAreUnclaimed) {
  P2pParams params = p2p_params();
  params.heads = 2;
  P2pSender s(params);
  for (uint64_t id = 0; id < 3; id++) s.post(id, 0, 0);
  s.sent(*s.next(all_readable));
  s.sent(*s.next(all_readable));
  EXPECT_FALSE(s.next(all_readable));
  EXPECT_FALSE(s.may_send());
  ASSERT_TRUE(s.on_credit(1, 0));
  EXPECT_TRUE(s.may_send());
  EXPECT_TRUE(s.sent(*s.next(all_readable)));
}

TEST(P2pSender, AbandonedMessagesAreReportedOnce) {
  P2pSender s(p2p_params());
  for (uint64_t id = 0; id < 3; id++) s.post(id, 0, 100);
  s.sent(*s.next(all_readable));
  ASSERT_TRUE(s.on_grant(0, 50));
  std::vector<uint64_t> ids = s.abandon();
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_TRUE(s.idle());
  EXPECT_FALSE(s.next(all_readable));
  EXPECT_TRUE(s.abandon().empty());
}

}  // namespace
}  // namespace mcast::test
