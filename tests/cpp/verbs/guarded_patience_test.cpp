// Guarded connections over verbs whose ends are stopped, busy or cut off in the middle of the
// handshake: this ends no peer, and loses or duplicates no frame.
#include <gmock/gmock.h>

#include "verbs/guarded_world.h"

namespace mcast::testing {
namespace {

class VerbsPatience : public GuardedVerbs {
 protected:
  // Sends frames of all channels from node 0.
  void send_frames() {
    peer = introduce(0, 1);
    node(0).send(peer, Channel::kControl, pattern(10, 1));
    node(0).send(peer, Channel::kRepair, pattern(60000, 2));
    node(0).send(peer, Channel::kReduce, pattern(60000, 3));
  }
  // Expects each frame once at node 1.
  void expect_frames() {
    ASSERT_EQ(node(1).frames.size(), 3u);
    EXPECT_EQ(node(1).frames_on(Channel::kControl)[0], pattern(10, 1));
    EXPECT_EQ(node(1).frames_on(Channel::kRepair)[0], pattern(60000, 2));
    EXPECT_EQ(node(1).frames_on(Channel::kReduce)[0], pattern(60000, 3));
    for (const auto& n : nodes) EXPECT_TRUE(n->downs.empty());
  }
  // Counts the messages of this size that are sent.
  void count(size_t size) {
    seen = 0;
    fake().on_message = [this, size](std::vector<std::byte>& bytes, uint32_t) {
      seen += bytes.size() == size ? 1 : 0;
      return true;
    };
  }

  int seen = 0;
};

TEST_F(VerbsPatience, AnAcceptorMayBeStoppedAfterItHasAccepted) {
  for (const Nanos pause : {2200 * kMilli, 4 * kSecond}) {
    nodes.clear();
    transports.clear();
    add_sealed(2);
    send_frames();
    poll_only(0, 5 * kMilli);
    poll_only(1, kMilli);
    count(crypto::kGuardedHelloSize);
    poll_only(0, pause);
    EXPECT_EQ(seen, 1);
    poll(50);
    expect_frames();
    EXPECT_EQ(stats(0).connect_retries, 0u);
  }
}

TEST_F(VerbsPatience, AConnectorMayBeStoppedAfterItsHello) {
  for (const Nanos pause : {2200 * kMilli, 4 * kSecond}) {
    nodes.clear();
    transports.clear();
    add_sealed(2);
    send_frames();
    count(crypto::kGuardedHelloSize);
    while (seen == 0) poll(1);
    poll_only(1, pause);
    poll(50);
    expect_frames();
    EXPECT_EQ(stats(0).connect_retries, 0u);
  }
}

// Stopped so long that the acceptor has given it up: after its "accepted", the connection has
// ended.
TEST_F(VerbsPatience, AConnectorThatWasGivenUpTriesAgain) {
  add_sealed(2);
  send_frames();
  count(crypto::kGuardedHelloSize);
  while (seen == 0) poll(1);
  poll_only(1, world.options.liveness_limit / 2 + kSecond);
  EXPECT_EQ(stats(1).hello_timeouts, 1u);
  poll(100);
  expect_frames();
  EXPECT_GT(stats(0).connect_retries, 0u);
}

// The lane's thread waits in the join: requests are accepted there, but its clock does not advance.
TEST_F(VerbsPatience, AJoinThatBlocksMayHoldUpAHandshake) {
  add_sealed(2);
  world.options.join_patience = 20 * kMilli;
  add_sealed(1);
  peer = introduce(0, 2);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  node(2).st().poll(node(2), now);
  poll_only(0, 5 * kMilli);
  fake().join_silent = true;
  EXPECT_FALSE(node(2).dg().join(world.address(1)).ok());
  count(crypto::kGuardedHelloSize);
  poll_only(0, 2100 * kMilli);
  EXPECT_EQ(seen, 1) << "it was accepted";
  poll(50);
  EXPECT_EQ(node(2).frames.size(), 1u);
  EXPECT_TRUE(node(0).downs.empty());
  EXPECT_EQ(stats(0).connect_retries, 0u);
}

// All of the acceptor's messages, including its goodbye, wait for the connector's next poll.
TEST_F(VerbsPatience, MessagesToAStoppedConnectorAreReceived) {
  add_sealed(2);
  const PeerId back = introduce(1, 0);
  peer = introduce(0, 1);
  count(crypto::kConfirmSize);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  while (seen == 0) {
    poll_only(0, kMilli);
    if (seen == 0) poll_only(1, kMilli);
  }
  node(1).send(back, Channel::kRepair, pattern(60000, 2));
  poll_only(1, 2 * kMilli);
  for (int i = 0; i < 5; i++) (void)node(1).st().close_peers(now += kMilli);
  node(1).transport.reset();
  poll_only(0, 5 * kMilli);
  ASSERT_EQ(node(0).frames.size(), 1u);
  EXPECT_EQ(node(0).frames[0].data, pattern(60000, 2));
  ASSERT_EQ(node(0).downs.size(), 1u);
  EXPECT_TRUE(node(0).downs[0].graceful) << node(0).downs[0].why.to_string();
}

// The end is known before the Confirm is read, so the Confirm is not used.
TEST_F(VerbsPatience, ConfirmOfAGonePeerOpensNothing) {
  add_sealed(1);
  world.options.join_patience = 20 * kMilli;
  add_sealed(1);
  count(crypto::kConfirmSize);
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  while (seen == 0) {
    poll_only(0, kMilli);
    if (seen == 0) poll_only(1, kMilli);
  }
  node(0).transport.reset();
  fake().join_silent = true;
  EXPECT_FALSE(node(1).dg().join(world.address(1)).ok());
  poll(10);
  EXPECT_EQ(stats(1).connections_opened, 0u);
  EXPECT_TRUE(node(1).downs.empty());
}

// No endpoint can connect to a peer of which only the uid is known: the peer must be accepted
// again.
TEST_F(VerbsPatience, ExpectedPeerMayRetry) {
  add_sealed(2);
  const uint64_t uids[] = {node(1).st().address(false).uid};
  const auto ids = node(0).st().expect(uids);
  change_first(crypto::kGuardedAckSize, drop);
  node(1).send(introduce(1, 0), Channel::kControl, pattern(10, 1));
  poll(10);
  fake().break_connections(IBV_WC_RETRY_EXC_ERR);
  poll(100);
  ASSERT_EQ(node(0).frames.size(), 1u);
  EXPECT_EQ(node(0).frames[0].peer, ids[0]);
  EXPECT_TRUE(node(0).downs.empty());
  EXPECT_TRUE(node(1).downs.empty());
}

// A connector keeps sending although it was told that its connection is not used. No credit is
// returned, since there are no keys to seal it with.
TEST_F(VerbsPatience, YieldingConnectorGetsNoCredit) {
  const auto identity = some_identity(Mode::kSealed);
  add(identity);
  add_sealed(1);
  connect();
  const StreamAddress at = node(1).st().address(false);
  verbs::Hello request;
  request.source = node(0).st().address(false).uid;
  request.target = at.uid;
  const auto head = encode(request, crypto::kGuardedStreamVersion);
  RawConnector raw(fake(), at.port);
  raw.ask(head);
  poll(3);
  const auto challenge = raw.answer().second;
  guarded::Connector connector(*identity, at, head);
  crypto::HelloBytes hello;
  ASSERT_TRUE(
      connector.on_challenge(ConstBytes(challenge).first<crypto::kChallengeSize>(), hello).ok());
  const auto numbers = fake().connection_numbers();
  ASSERT_EQ(numbers.size(), 4u);
  fake().hold_completions_of = numbers[3];
  change_first(crypto::kGuardedAckSize, drop);  // it has posted no receives
  fake().inject_from(raw.number(), {hello.begin(), hello.end()});
  poll(3);
  EXPECT_EQ(fake().connection_numbers().size(), 4u) << "the answer may still be on its way";
  const uint64_t credits = stats(1).credit_messages;
  for (int i = 0; i < 10; i++) fake().inject_from(raw.number(), pattern(20, 1));
  poll(3);
  EXPECT_EQ(fake().connection_numbers().size(), 3u);
  fake().let_completions_go();
  poll(3);
  EXPECT_EQ(stats(1).credit_messages, credits);
  EXPECT_TRUE(node(1).downs.empty());
  expect_working(0, 1);
}

// Between guarded endpoints a reject proves nothing, nor does its claim of another connection.
TEST_F(VerbsPatience, ARejectThatYieldsIsAnAttemptThatFailed) {
  add_sealed(2);
  rdma_event_channel* const channel = fake().create_event_channel();
  rdma_cm_id* listener = nullptr;
  (void)fake().create_id(channel, &listener, nullptr, RDMA_PS_TCP);
  SocketAddress at(Endpoint{IpAddress::v4(INADDR_LOOPBACK), 0});
  (void)fake().bind_addr(listener, at.get());
  (void)fake().listen(listener, 1);
  StreamAddress address = node(1).st().address(false);
  address.port = fake().local_port(listener);
  node(0).send(node(0).st().add_peer(address), Channel::kControl, pattern(10, 1));
  poll(3);
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(fake().get_cm_event(channel, &event), 0);
  rdma_cm_id* const request = event->id;
  (void)fake().ack_cm_event(event);
  const auto yield = encode(verbs::Refusal::kYield);
  (void)fake().reject(request, yield.data(), static_cast<uint8_t>(yield.size()));
  (void)fake().destroy_id(request);
  (void)fake().destroy_id(listener);
  fake().destroy_event_channel(channel);
  introduce(0, 1);  // its real address
  poll(60);
  EXPECT_EQ(node(1).frames.size(), 1u);
  EXPECT_EQ(stats(0).yielded, 0u);
  EXPECT_TRUE(node(0).downs.empty());
}

}  // namespace
}  // namespace mcast::testing
