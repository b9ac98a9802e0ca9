// Posts and requests that other threads pass to the thread that drives a lane.
#include "shm/inbox.h"

#include <gtest/gtest.h>

namespace mcast::test {
namespace {

Post numbered(Sequence sequence) {
  Post post;
  post.sequence = sequence;
  return post;
}

TEST(LaneInbox, KeepsTheOrderAndEndsEmpty) {
  LaneInbox inbox;
  LaneInbox::Mail mail;
  EXPECT_FALSE(inbox.has_mail());
  EXPECT_FALSE(inbox.take(mail));
  inbox.put(numbered(0));
  inbox.put(Status(Code::kAborted, "why not"), 3);
  inbox.put(numbered(1));
  ASSERT_TRUE(inbox.take(mail));
  EXPECT_FALSE(inbox.has_mail());
  ASSERT_EQ(mail.posts.size(), 2u);
  EXPECT_EQ(mail.posts[1].sequence, 1u);
  ASSERT_EQ(mail.failures.size(), 1u);
  EXPECT_EQ(mail.failures[0].second, 3);
}

TEST(LaneInbox, UnservedRequestsStay) {
  LaneInbox inbox;
  LaneInbox::Mail mail;
  inbox.put(LaneInbox::Closing{1, false, {}});
  ASSERT_TRUE(inbox.take(mail));
  inbox.put(LaneInbox::Closing{2, true, {}});
  inbox.put(numbered(7));
  ASSERT_TRUE(inbox.take(mail));
  ASSERT_EQ(mail.closings.size(), 2u);
  EXPECT_EQ(mail.closings[0].deadline, 1);
  EXPECT_EQ(mail.closings[1].deadline, 2);
  EXPECT_EQ(mail.posts.size(), 1u);
}

TEST(LaneInbox, AKnockIsMail) {
  LaneInbox inbox;
  LaneInbox::Mail mail;
  inbox.knock();
  EXPECT_TRUE(inbox.has_mail());
  EXPECT_TRUE(inbox.take(mail));
  EXPECT_TRUE(mail.posts.empty());
  EXPECT_FALSE(inbox.take(mail));
}

}  // namespace
}  // namespace mcast::test
