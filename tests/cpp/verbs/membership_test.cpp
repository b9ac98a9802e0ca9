// Memberships: the results of joins, and memberships that the fabric revokes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/socket_address.h"
#include "verbs/datagram_world.h"

namespace mcast::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using VerbsMembership = VerbsDatagram;

TEST_F(VerbsMembership, ARejectedJoinSaysWhy) {
  Node& a = add();
  fake().join_status = -ENETUNREACH;
  const Status rejected = a.dg().join(group);
  EXPECT_EQ(rejected.code(), Code::kUnavailable);
  EXPECT_THAT(rejected.message(), HasSubstr("joining the multicast group failed"));
  EXPECT_THAT(rejected.message(), HasSubstr("fake_0:1"));
  fake().join_status = 0;
  EXPECT_TRUE(a.dg().join(group).ok()) << "a later try is a fresh one";
}

TEST_F(VerbsMembership, UnansweredJoinFailsAndNamesTheSubnetManager) {
  Node& a = add();
  fake().join_silent = true;
  const Status silent = a.dg().join(group);
  EXPECT_EQ(silent.code(), Code::kUnavailable);
  EXPECT_THAT(silent.message(), HasSubstr("subnet manager"));
}

TEST_F(VerbsMembership, AFailedAttachNamesTheDevicesLimit) {
  Node& a = add();
  fake().attach_error = ENOMEM;
  const Status full = a.dg().join(group);
  EXPECT_FALSE(full.ok());
  EXPECT_THAT(full.message(), HasSubstr("64 multicast groups"));
}

TEST_F(VerbsMembership, GroupsAreLimitedByTheDevice) {
  fake().attr.max_mcast_grp = 2;
  Node& a = add();
  ASSERT_TRUE(a.dg().join({1, 1, false}).ok());
  ASSERT_TRUE(a.dg().join({2, 1, false}).ok());
  EXPECT_EQ(a.dg().join({3, 1, false}).code(), Code::kResourceExhausted);
  a.dg().leave({1, 1, false});
  EXPECT_TRUE(a.dg().join({3, 1, false}).ok());
}

TEST_F(VerbsMembership, ChangedAddressesAreJoinedAnew) {
  for (const ibv_event_type change :
       {IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_CLIENT_REREGISTER}) {
    Node& a = add();
    ASSERT_TRUE(a.dg().join(group).ok());
    const uint16_t before = fake().mlid++;
    EXPECT_THAT(fake().attached_lids(), ElementsAre(before));
    fake().raise(change);
    poll(4);
    EXPECT_THAT(fake().attached_lids(), ElementsAre(before + 1)) << change;
    EXPECT_EQ(transports.back()->datagram_stats().rejoins, 1u);
    nodes.clear();
    transports.clear();
  }
}

TEST_F(VerbsMembership, AGroupThatTheFabricTookAwayIsJoinedAgain) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  fake().mlid = 0xc777;
  fake().fabric_takes_group_away();
  poll(4);
  EXPECT_THAT(fake().attached_lids(), ElementsAre(0xc777));
  send(a, pattern(64, 2));
  poll();
  EXPECT_EQ(b.datagrams.size(), 1u);
}

TEST_F(VerbsMembership, ARejoinThatFailsIsTriedAgainWithPauses) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  fake().join_status = -ENETUNREACH;
  fake().fabric_takes_group_away();
  poll(1000);
  EXPECT_TRUE(fake().attached_lids().empty());
  EXPECT_EQ(stats(0).rejoins, 1u);
  EXPECT_EQ(stats(0).join_failures, 4u) << "at once, after 100, 300, 700 ms";
  EXPECT_LT(transports[0]->ud().until_timer(), kSecond) << "a lane that sleeps wakes for it";
  send(a, pattern(64, 1));
  poll();
  EXPECT_EQ(stats(0).dropped_datagrams, 1u);
  fake().join_status = 0;
  poll(1000);
  send(a, pattern(64, 2));
  poll();
  EXPECT_EQ(b.datagrams, std::vector<Buffer>{pattern(64, 2)});
  EXPECT_EQ(transports[0]->ud().until_timer(), kNever);
}

TEST_F(VerbsMembership, ASenderThatCouldNotJoinTriesAgain) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(b.dg().join(group).ok());
  fake().join_status = -ENETUNREACH;
  send(a, pattern(64, 1));
  poll();
  fake().join_status = 0;
  poll(200);
  send(a, pattern(64, 2));
  poll();
  EXPECT_EQ(b.datagrams, std::vector<Buffer>{pattern(64, 2)});
}

TEST_F(VerbsMembership, APendingRejoinHoldsOnlyItsOwnGroup) {
  const MulticastAddress other{78, 4711, false};
  Node& a = add();
  Node& b = add();
  for (Node* n : {&a, &b}) {
    ASSERT_TRUE(n->dg().join(group).ok());
    ASSERT_TRUE(n->dg().join(other).ok());
  }
  const in_addr_t taken = in4_of(verbs::group_endpoint(group).address).s_addr;
  fake().silent_groups.insert(taken);
  fake().fabric_takes_group_away(taken);
  poll();
  size_t held = 0;
  while (held < 2 * verbs::kSendEntries && offer(a, group, pattern(64, 1))) ++held;
  EXPECT_EQ(held, verbs::kMostWaiting) << "the others need entries too";
  for (size_t i = 0; i < verbs::kSendEntries; ++i) {
    ASSERT_TRUE(offer(a, other, pattern(32, i))) << i;
    a.dg().flush();
    poll(i % 50 == 49 ? 1 : 0);
  }
  poll(1);
  EXPECT_EQ(b.datagrams, [] {
    std::vector<Buffer> want;
    for (size_t i = 0; i < verbs::kSendEntries; ++i) want.push_back(pattern(32, i));
    return want;
  }());
  // There is no reply within the patience: it joins again.
  b.datagrams.clear();
  fake().silent_groups.clear();
  poll(300);
  EXPECT_EQ(stats(0).join_failures, 1u);
  ASSERT_TRUE(offer(a, group, pattern(64, 7)));
  poll();
  EXPECT_EQ(b.datagrams, std::vector<Buffer>{pattern(64, 7)});
}

TEST_F(VerbsMembership, LateReplyToARejoinSendsWaitingDatagrams) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(b.dg().join(group).ok());
  for (size_t i = 0; i < 5; ++i) send(a, pattern(64, i));
  EXPECT_TRUE(b.datagrams.empty());
  poll();
  EXPECT_EQ(b.datagrams.size(), 5u);
}

TEST_F(VerbsMembership, AnAddressThatMovedToAnotherPortIsNotJoinedThere) {
  Node& a = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  fake().port_number = 2;
  fake().fabric_takes_group_away();
  poll(50);
  EXPECT_TRUE(fake().attached_lids().empty());
  EXPECT_EQ(stats(0).join_failures, 1u);
  EXPECT_THAT(a.dg().join({78, 4711, false}).message(),
              HasSubstr("127.0.0.1 now belongs to fake_0:2"));
  fake().port_number = 1;
  poll(200);
  EXPECT_EQ(fake().attached_lids().size(), 1u);
}

TEST_F(VerbsMembership, AddressHandlesOutliveSendsInFlight) {
  for (const bool leave : {false, true}) {
    Node& a = add();
    ASSERT_TRUE(a.dg().join(group).ok());
    fake().hold_sends = true;
    send(a, pattern(64, 1));
    a.dg().flush();
    if (leave) {
      a.dg().leave(group);
    } else {
      fake().fabric_takes_group_away();
    }
    poll();
    EXPECT_EQ(fake().attached_lids().empty(), leave);
    EXPECT_EQ(fake().destroyed_in_use, 0u);
    fake().let_sends_go();
    poll();
    EXPECT_EQ(fake().destroyed_in_use, 0u);
    EXPECT_EQ(stats(0).send_errors, 0u);
    nodes.clear();
    transports.clear();
  }
}

}  // namespace
}  // namespace mcast::testing
