// The datagram endpoint if device and fabric misbehave, and its calls to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verbs/datagram_world.h"

namespace mcast::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(VerbsDatagram, SendsWithWhatTheJoinReturned) {
  fake().qkey = 0xabcdef;
  fake().mlid = 0xc123;
  fake().multicast_qpn = 0xfffff0;
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  EXPECT_THAT(fake().attached_lids(), ElementsAre(0xc123));
  send(a, pattern(100, 1));
  poll();
  EXPECT_EQ(b.datagrams.size(), 1u);
  EXPECT_THAT(fake().used_qkeys, ElementsAre(0xabcdefu));
}

TEST_F(VerbsDatagram, EachChainOfSendsHasOneCompletion) {
  Node& a = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  const uint64_t posts = fake().send_posts;
  for (size_t i = 0; i < 2 * verbs::kSendChain; ++i) send(a, pattern(64, i));
  poll();
  EXPECT_EQ(fake().send_posts - posts, 2u);
  EXPECT_EQ(stats(0).send_completions, 2u);
  EXPECT_EQ(fake().unsignalled, 2 * (verbs::kSendChain - 1));
}

TEST_F(VerbsDatagram, ManyMoreDatagramsThanEntriesPassBothRings) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  const size_t total = 5 * transports[1]->ud().receive_entries();
  for (size_t i = 0; i < total; ++i) {
    send(a, pattern(32, i));
    if (i % 100 == 99) poll(1);
  }
  poll();
  ASSERT_EQ(b.datagrams.size(), total);
  EXPECT_EQ(b.datagrams[total / 2], pattern(32, total / 2));
  EXPECT_EQ(fake().lost_without_receive, 0u);
  EXPECT_LE(stats(1).receive_posts, total / (verbs::kReceiveChain / 2)) << "posted in chains";
}

TEST_F(VerbsDatagram, AReceiverThatIsNotPolledLosesWithoutHarm) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  const size_t entries = transports[1]->ud().receive_entries();
  for (size_t i = 0; i < entries + 50; ++i) {
    send(a, pattern(32, i));
    if (i % 100 == 99) nodes[0]->dg().receive(*nodes[0], 1 << 20);
  }
  a.dg().flush();
  EXPECT_EQ(fake().lost_without_receive % (entries + 50), 50u);
  poll();
  EXPECT_EQ(b.datagrams.size(), entries);
  EXPECT_GT(stats(1).low_water, 0u);
  send(a, pattern(32, 1));
  poll();
  EXPECT_EQ(b.datagrams.size(), entries + 1) << "the receives are there again";
}

TEST_F(VerbsDatagram, OwnDatagramsAreDroppedBySource) {
  Node& a = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  send(a, pattern(64, 1));
  poll();
  EXPECT_TRUE(a.datagrams.empty());
  EXPECT_EQ(stats(0).own_echo, 1u);
}

// Queue pair numbers are unique per device only: other hosts use the same numbers.
TEST_F(VerbsDatagram, DatagramsOfANamesakeAreNotOwnOnes) {
  const auto check = [this](const char* what) {
    Node& a = add();
    ASSERT_TRUE(a.dg().join(group).ok());
    fake().inject_namesake(pattern(64, 1));
    send(a, pattern(64, 2));
    poll();
    EXPECT_EQ(a.datagrams, std::vector<Buffer>{pattern(64, 1)}) << what;
    EXPECT_EQ(transports[0]->datagram_stats().own_echo, 1u) << what;
    nodes.clear();
    transports.clear();
  };
  check("RoCE v2 over IPv4");
  fake().ipv6 = true;
  check("RoCE v2 over IPv6, or RoCE v1");
  fake().link_layer = IBV_LINK_LAYER_INFINIBAND;
  check("InfiniBand");
}

TEST_F(VerbsDatagram, TheInterfacesPartitionIsUsed) {
  fake().link_layer = IBV_LINK_LAYER_INFINIBAND;
  fake().partition = 0x8005;
  const std::vector<std::vector<uint16_t>> tables = {
      {0xffff, 0x8001, 0x8005}, {0x8005}, {0xffff, 0x0005}, {0x7fff, 0x0005, 0x8005}};
  for (const auto& table : tables) {
    fake().pkeys = table;
    Node& a = add();
    Node& b = add();
    ASSERT_TRUE(a.dg().join(group).ok());
    ASSERT_TRUE(b.dg().join(group).ok());
    send(a, pattern(64, 1));
    poll();
    EXPECT_EQ(b.datagrams.size(), 1u);
    EXPECT_EQ(fake().wrong_partition, 0u);
    nodes.clear();
    transports.clear();
  }
  fake().pkeys = {0xffff};
  const auto refused = verbs::make_transport(fake(), world.options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("not a member of partition 0x8005"));
}

TEST_F(VerbsDatagram, ABrokenQueuePairIsMadeAnew) {
  for (const bool event : {true, false}) {
    Node& a = add();
    Node& b = add();
    ASSERT_TRUE(a.dg().join(group).ok());
    ASSERT_TRUE(b.dg().join(group).ok());
    send(a, pattern(64, 1));
    a.dg().flush();  // received before the end
    fake().break_datagrams(event);
    send(a, pattern(64, 2));
    poll();
    EXPECT_EQ(transports[0]->datagram_stats().rebuilds, 1u);
    EXPECT_EQ(transports[1]->datagram_stats().rebuilds, 1u);
    send(a, pattern(64, 3));
    poll();
    EXPECT_THAT(b.datagrams, Contains(pattern(64, 1)));
    EXPECT_EQ(b.datagrams.back(), pattern(64, 3));
    // All receives are posted again.
    const size_t entries = transports[1]->ud().receive_entries();
    const size_t before = b.datagrams.size();
    for (size_t i = 0; i < entries; ++i) {
      send(a, pattern(32, i));
      if (i % 100 == 99) nodes[0]->dg().receive(*nodes[0], 1 << 20);
    }
    poll();
    EXPECT_EQ(b.datagrams.size() - before, entries);
    nodes.clear();
    transports.clear();
  }
}

TEST_F(VerbsDatagram, AQueuePairThatStaysBrokenCostsNoWorkAndSaysWhy) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  fake().qp_error = ENOMEM;
  fake().break_datagrams(false);
  const uint64_t flushed = fake().flushed_receives;
  poll(500);
  EXPECT_EQ(fake().flushed_receives, flushed) << "nothing is posted to be flushed again";
  EXPECT_GT(transports[0]->ud().until_timer(), 0);
  send(a, pattern(64, 1));
  poll();
  EXPECT_EQ(stats(0).dropped_datagrams, 1u);
  const Status refused = a.dg().join({78, 4711, false});
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("ibv_create_qp (UD)"));
  fake().qp_error = 0;
  poll(500);
  EXPECT_EQ(stats(0).rebuilds, 1u);
  send(a, pattern(64, 2));
  poll();
  EXPECT_EQ(b.datagrams, std::vector<Buffer>{pattern(64, 2)});
}

TEST_F(VerbsDatagram, AQueuePairThatBreaksAgainAndAgainIsMadeAnewWithPauses) {
  Node& a = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  for (int i = 0; i < 1000; ++i) {
    fake().break_datagrams(false);
    poll(1);
  }
  EXPECT_EQ(stats(0).rebuilds, 4u) << "at once, after 100, 300, 700 ms";
}

TEST_F(VerbsDatagram, SendErrorsOfEachKindAreSurvived) {
  for (const ibv_wc_status status : {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR,
                                     IBV_WC_WR_FLUSH_ERR, IBV_WC_GENERAL_ERR}) {
    Node& a = add();
    Node& b = add();
    ASSERT_TRUE(a.dg().join(group).ok());
    ASSERT_TRUE(b.dg().join(group).ok());
    fake().datagram_status = status;
    for (size_t i = 0; i < 3; ++i) send(a, pattern(64, i));
    poll();
    EXPECT_TRUE(b.datagrams.empty());
    EXPECT_GT(transports[0]->datagram_stats().send_errors, 0u) << status;
    fake().datagram_status = IBV_WC_SUCCESS;
    send(a, pattern(64, 9));
    poll();
    EXPECT_EQ(b.datagrams, std::vector<Buffer>{pattern(64, 9)}) << status;
    nodes.clear();
    transports.clear();
  }
}

TEST_F(VerbsDatagram, ReceiveErrorsCostTheirDatagramOnly) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  fake().receive_status = IBV_WC_LOC_PROT_ERR;
  send(a, pattern(64, 1));
  poll();
  fake().receive_status = IBV_WC_SUCCESS;
  send(a, pattern(64, 2));
  poll();
  EXPECT_EQ(b.datagrams, std::vector<Buffer>{pattern(64, 2)});
  EXPECT_EQ(stats(1).receive_errors, 1u);
}

TEST_F(VerbsDatagram, RefusedPostsLoseNoEntry) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(a.dg().join(group).ok());
  ASSERT_TRUE(b.dg().join(group).ok());
  for (int round = 0; round < 600; ++round) {
    fake().refuse_posts = 1;
    send(a, pattern(64, 1));
    a.dg().flush();
    poll(1);
  }
  EXPECT_GT(stats(0).send_errors, 0u);
  fake().refuse_posts = 0;
  const size_t before = b.datagrams.size();
  for (size_t i = 0; i < verbs::kSendEntries; ++i) {
    send(a, pattern(64, i));
    poll(1);
  }
  EXPECT_EQ(b.datagrams.size() - before, verbs::kSendEntries);
}

TEST_F(VerbsDatagram, SendersThatHaveNotJoinedGetTheGroupsAddressToo) {
  Node& a = add();
  Node& b = add();
  ASSERT_TRUE(b.dg().join(group).ok());
  send(a, pattern(64, 1));
  EXPECT_FALSE(a.dg().flush()) << "the address is not known yet";
  poll();
  EXPECT_EQ(b.datagrams.size(), 1u);
  a.dg().leave(group);  // never joined: no effect
  ASSERT_TRUE(a.dg().join(group).ok());
  send(b, pattern(64, 2));
  poll();
  EXPECT_EQ(a.datagrams.size(), 1u);
  EXPECT_EQ(fake().destroyed_in_use, 0u);
}

TEST_F(VerbsDatagram, ARemovedDeviceTakesNoMoreGroups) {
  Node& a = add();
  fake().raise(IBV_EVENT_DEVICE_FATAL);
  poll();
  const Status gone = a.dg().join(group);
  EXPECT_EQ(gone.code(), Code::kUnavailable);
  EXPECT_THAT(gone.message(), HasSubstr("fatal error"));
}

TEST_F(VerbsDatagram, APortWithoutLinkTakesNoMoreGroupsUntilItIsBack) {
  Node& a = add();
  fake().raise(IBV_EVENT_PORT_ERR);
  poll();
  EXPECT_THAT(a.dg().join(group).message(), HasSubstr("lost its link"));
  fake().raise(IBV_EVENT_PORT_ACTIVE);
  poll();
  EXPECT_TRUE(a.dg().join(group).ok());
}

// Lanes on two ports of a device share its events; the one that reads them reads for both.
TEST_F(VerbsDatagram, EventsOfAPortAreThatPortsOnly) {
  Node& one = add();
  fake().port_number = 2;
  Node& two = add();
  fake().raise(IBV_EVENT_PORT_ERR, 0, 2);
  poll();
  EXPECT_THAT(two.dg().join(group).message(), HasSubstr("fake_0:2 lost its link"));
  fake().port_number = 1;
  EXPECT_TRUE(one.dg().join(group).ok());
  fake().raise(IBV_EVENT_PORT_ACTIVE, 0, 2);
  poll();
  fake().port_number = 2;
  EXPECT_TRUE(two.dg().join(group).ok());
  fake().raise(IBV_EVENT_GID_CHANGE, 0, 2);
  poll();
  EXPECT_EQ(stats(0).rejoins, 0u);
  EXPECT_EQ(stats(1).rejoins, 1u);
}

TEST_F(VerbsDatagram, MemoryLimitsShrinkTheRingThenFailWithTheRemedy) {
  const MemlockLimit limit(65536);
  fake().largest_registration = 2 << 20;
  world.options.rcvbuf = 32 << 20;
  Node& a = add();
  EXPECT_LE(transports[0]->ud().receive_entries() * 4160, size_t{2} << 20);
  EXPECT_GT(a.dg().receive_budget(), 0u);
  fake().registration_error = ENOMEM;
  const auto refused = verbs::make_transport(fake(), world.options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("registering"));
  EXPECT_THAT(refused.status().message(), HasSubstr("limit is 65536 bytes"));
  EXPECT_THAT(refused.status().message(), HasSubstr("ulimit -l unlimited"));
}

}  // namespace
}  // namespace mcast::testing
