// Particulars of TCP streams at their start: the handshake with strangers, garbage and silence, and
// connections that fail.
#include <gmock/gmock.h>

#include <set>

#include "base/random.h"
#include "support/seeds.h"
#include "transport/udp_stream_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(UdpStreamTest, UidsDifferAndAddressesAreNumeric) {
  make_nodes(2);
  const StreamAddress a = node(0).st().address(true), b = node(1).st().address(false);
  EXPECT_NE(a.uid, 0u);
  EXPECT_NE(a.uid, b.uid);
  EXPECT_EQ(a.host, "127.0.0.1");
  EXPECT_NE(a.port, 0);
  EXPECT_EQ(node(0).st().address(false).port, a.port);  // lo is the chosen interface
}

// Unused ports of loopback, below those that the kernel assigns.
PortRange free_ports(uint16_t count) {
  for (;;) {
    const auto first = static_cast<uint16_t>(10000 + secure_random64() % 9000);
    bool free = true;
    for (uint16_t i = 0; i < count && free; ++i) {
      const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto port = static_cast<uint16_t>(first + i);
      free = bind_to(fd.get(), {IpAddress::v4(INADDR_LOOPBACK), port}) == 0;
    }
    if (free) return {first, static_cast<uint16_t>(first + count - 1)};
  }
}

TEST_F(UdpStreamTest, PeersListenInTheRangeOfPorts) {
  const PortRange range = world_.options.ports = free_ports(3);
  make_nodes(2);
  expect_still_working();  // with a third
  std::set<uint16_t> ports;
  for (const auto& n : nodes_) ports.insert(n->st().address(true).port);
  EXPECT_EQ(ports.size(), 3u);
  EXPECT_EQ(*ports.begin(), range.first);
  EXPECT_EQ(*ports.rbegin(), range.last);
}

TEST_F(UdpStreamTest, ARangeThatIsTakenIsAnErrorUntilItsOwnerIsGone) {
  world_.options.ports = free_ports(1);
  make_nodes(1);
  const auto second = make_udp_transport(world_.options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(),
              HasSubstr("all 1 ports of port_range: Address already in use"));
  // The owner closes this connection first, so the kernel keeps the connection and its port for a
  // while.
  const Fd peer = accepted_peer(77);
  node(0).transport.reset();
  const auto third = make_udp_transport(world_.options);
  EXPECT_TRUE(third.ok()) << third.status().to_string();
}

TEST_F(UdpStreamTest, AHelloForSomebodyElseIsRefused) {
  make_nodes(1);
  Hello hello = hello_to(0, 99);
  hello.target ^= 1;
  const Fd fd = raw_connect(node(0).st().address(true));
  ASSERT_TRUE(raw_send(fd, encode(hello)));
  Buffer received;
  EXPECT_TRUE(closed(fd, &received));
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(stats(0).hello_refused, 1u);
  EXPECT_TRUE(node(0).downs.empty());
  expect_still_working();
}

TEST_F(UdpStreamTest, AHelloFromOurselvesOrNobodyIsRefused) {
  make_nodes(1);
  for (uint64_t source : {node(0).st().address(true).uid, uint64_t{0}}) {
    const Fd fd = raw_connect(node(0).st().address(true));
    ASSERT_TRUE(raw_send(fd, encode(hello_to(0, source))));
    EXPECT_TRUE(closed(fd));
  }
  EXPECT_EQ(stats(0).hello_refused, 2u);
}

TEST_F(UdpStreamTest, GarbageIsRefused) {
  make_nodes(1);
  const test::Seeds seeds = test::seeds(50);
  for (const uint64_t seed : seeds) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const Fd fd = raw_connect(node(0).st().address(true));
    ASSERT_TRUE(raw_send(fd, pattern(kHelloSize + seed % 50 * 100, seed)));
    EXPECT_TRUE(closed(fd)) << seed;
  }
  const Fd web = raw_connect(node(0).st().address(true));
  const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_TRUE(raw_send(web, std::as_bytes(std::span(request))));
  EXPECT_TRUE(closed(web));
  EXPECT_EQ(stats(0).hello_refused, seeds.size() + 1);
  EXPECT_TRUE(node(0).frames.empty());
  expect_still_working();
}

TEST_F(UdpStreamTest, HalfAHelloIsCountedAndSilenceTimesOut) {
  make_nodes(1);
  const auto hello = encode(hello_to(0, 5));
  {
    const Fd half = raw_connect(node(0).st().address(true));
    ASSERT_TRUE(raw_send(half, ConstBytes(hello).first(10)));
  }
  EXPECT_TRUE(pump([&] { return stats(0).hello_refused == 1; }));
  { const Fd mute = raw_connect(node(0).st().address(true)); }  // closed silently: not an error
  const Fd silent = raw_connect(node(0).st().address(true));
  const Fd slow = raw_connect(node(0).st().address(true));
  ASSERT_TRUE(raw_send(slow, ConstBytes(hello).first(31)));
  settle(20);
  EXPECT_EQ(stats(0).hello_timeouts, 0u);
  world_.shift += HalfOpen::kPatience;
  EXPECT_TRUE(closed(silent));
  EXPECT_TRUE(closed(slow));
  EXPECT_EQ(stats(0).hello_timeouts, 2u);
  EXPECT_EQ(stats(0).hello_refused, 1u);
  expect_still_working();
}

TEST_F(UdpStreamTest, AHelloInPiecesIsAccepted) {
  make_nodes(1);
  const Fd fd = raw_connect(node(0).st().address(true));
  const auto hello = encode(hello_to(0, 5));
  for (const std::byte& b : hello) {
    ASSERT_TRUE(raw_send(fd, {&b, 1}));
    poll_all();
  }
  std::byte ack[kHelloAckSize];
  EXPECT_TRUE(pump([&] {
    return ::recv(fd.get(), ack, sizeof ack, MSG_DONTWAIT | MSG_PEEK) ==
           static_cast<ssize_t>(kHelloAckSize);
  }));
}

TEST_F(UdpStreamTest, BadFrameLengthsBringThePeerDown) {
  make_nodes(1);
  uint64_t source = 1000;
  for (const uint32_t length : {0u, static_cast<uint32_t>(kMaxControlFrame) + 1, 0xfffffffeu}) {
    const Fd fd = accepted_peer(++source);
    node(0).downs.clear();
    ASSERT_TRUE(raw_send(fd, encode_prefix(length)));
    EXPECT_TRUE(closed(fd));
    ASSERT_EQ(node(0).downs.size(), 1u);
    EXPECT_FALSE(node(0).downs[0].graceful);
    EXPECT_EQ(node(0).downs[0].why.code(), Code::kPeerLost);
    EXPECT_THAT(node(0).downs[0].why.message(),
                HasSubstr("frame of " + std::to_string(length) + " bytes"));
  }
  EXPECT_EQ(stats(0).protocol_violations, 3u);
  // The bulk channels allow slightly more.
  const Fd bulk = accepted_peer(++source, Channel::kRepair);
  const Buffer frame = pattern(kMaxBulkFrame, 1);
  ASSERT_TRUE(raw_send(bulk, encode_prefix(static_cast<uint32_t>(frame.size()))));
  ASSERT_TRUE(raw_send(bulk, frame));
  EXPECT_TRUE(pump([&] { return node(0).frames.size() == 1; }));
}

TEST_F(UdpStreamTest, DataAfterAGoodbyeBringsThePeerDown) {
  make_nodes(1);
  const Fd fd = accepted_peer(7);
  ASSERT_TRUE(raw_send(fd, encode_prefix(kGoodbyeLength)));
  settle(10);
  EXPECT_TRUE(node(0).downs.empty());
  ASSERT_TRUE(raw_send(fd, encode_prefix(1)));
  EXPECT_TRUE(closed(fd));
  ASSERT_EQ(node(0).downs.size(), 1u);
  EXPECT_FALSE(node(0).downs[0].graceful);
}

TEST_F(UdpStreamTest, AnEndInTheMiddleOfAFrameSaysSo) {
  make_nodes(1);
  {
    const Fd fd = accepted_peer(7);
    ASSERT_TRUE(raw_send(fd, encode_prefix(100)));
    ASSERT_TRUE(raw_send(fd, pattern(50, 1)));
  }
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("in the middle of a frame"));
  EXPECT_TRUE(node(0).frames.empty());
}

TEST_F(UdpStreamTest, ADownPeerIsNotLetInAgain) {
  make_nodes(1);
  { const Fd fd = accepted_peer(7); }
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  const Fd again = raw_connect(node(0).st().address(true));
  ASSERT_TRUE(raw_send(again, encode(hello_to(0, 7))));
  Buffer received;
  EXPECT_TRUE(closed(again, &received));
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(node(0).downs.size(), 1u);
}

TEST_F(UdpStreamTest, ASecondConnectionOfALinkIsTurnedAway) {
  make_nodes(1);
  const Fd first = accepted_peer(7);
  const Fd second = raw_connect(node(0).st().address(true));
  ASSERT_TRUE(raw_send(second, encode(hello_to(0, 7))));
  Buffer received;
  EXPECT_TRUE(closed(second, &received));
  ASSERT_EQ(received.size(), kHelloAckSize);
  const auto ack =
      decode_hello_ack(std::span<const std::byte, kHelloAckSize>(received.data(), kHelloAckSize));
  ASSERT_TRUE(ack.has_value());
  EXPECT_EQ(ack->verdict, Verdict::kYield);
  EXPECT_TRUE(node(0).downs.empty());
}

TEST_F(UdpStreamTest, RefusedConnectionIsReportedAfterTheLivenessLimit) {
  make_nodes(1);
  Fd reserved;
  const StreamAddress address = nobody(reserved);
  const PeerId peer = node(0).st().add_peer(address);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return stats(0).connect_retries >= 2; }));
  pass(world_.options.liveness_limit - kSecond);
  EXPECT_TRUE(node(0).downs.empty());
  EXPECT_GT(node(0).st().queued(peer, Channel::kControl), 0u);
  pass(kSecond);
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_FALSE(node(0).downs[0].graceful);
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("Connection refused"));
  EXPECT_THAT(node(0).downs[0].why.message(),
              HasSubstr("127.0.0.1:" + std::to_string(address.port)));
  EXPECT_EQ(node(0).st().queued(peer, Channel::kControl), 0u);
}

// A firewall that reloads, or a pod network that is set up late.
TEST_F(UdpStreamTest, PeerOfAGroupBeingCreatedIsTriedUntilItsTimeLimit) {
  make_nodes(1);
  Fd reserved;
  const PeerId peer = node(0).st().add_peer(nobody(reserved));
  const Nanos limit = world_.options.liveness_limit;
  node(0).st().keep_trying(peer, world_.now() + 3 * limit);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return stats(0).connect_retries >= 1; }));
  pass(2 * limit);
  ASSERT_TRUE(node(0).downs.empty());
  ASSERT_EQ(::listen(reserved.get(), 4), 0);
  pass(kSecond);  // the longest pause between attempts is shorter
  Fd accepted;
  ASSERT_TRUE(pump([&] {
    if (!accepted.valid())
      accepted = Fd(::accept4(reserved.get(), nullptr, nullptr, SOCK_NONBLOCK));
    std::byte hello[kHelloSize];
    return accepted.valid() && ::recv(accepted.get(), hello, sizeof hello, MSG_PEEK) ==
                                   static_cast<ssize_t>(sizeof hello);
  }));
  EXPECT_TRUE(node(0).downs.empty());
}

TEST_F(UdpStreamTest, CreatedGroupsPeerIsReportedAfterTheLivenessLimitAgain) {
  make_nodes(1);
  Fd reserved;
  const PeerId peer = node(0).st().add_peer(nobody(reserved));
  const Nanos limit = world_.options.liveness_limit;
  node(0).st().keep_trying(peer, world_.now() + 100 * limit);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return stats(0).connect_retries >= 1; }));
  pass(2 * limit);
  ASSERT_TRUE(node(0).downs.empty());
  node(0).st().keep_trying(peer, 0);
  EXPECT_TRUE(pump([&] { return !node(0).downs.empty(); }));
}

TEST_F(UdpStreamTest, AnImpostorOrAMuteListenerIsReported) {
  make_nodes(1);
  StreamAddress address{4711, "", 0};
  const Fd listener = raw_listen(address);  // the kernel accepts, but nothing replies
  const PeerId peer = node(0).st().add_peer(address);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  settle(20);
  EXPECT_TRUE(node(0).downs.empty());
  // This process was stopped, and the peer perhaps too, so this time does not count.
  world_.shift += 2 * world_.options.liveness_limit;
  settle(20);
  EXPECT_TRUE(node(0).downs.empty());
  world_.shift += world_.options.liveness_limit;
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_EQ(node(0).downs[0].peer, peer);
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("did not answer"));

  // A reply with the wrong uid counts as a failed attempt.
  StreamAddress other{4712, "", 0};
  const Fd impostor = raw_listen(other);
  node(0).send(node(0).st().add_peer(other), Channel::kControl, pattern(10, 1));
  settle(10);
  const Fd c(::accept4(impostor.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(c.valid());
  ASSERT_TRUE(raw_send(c, encode(HelloAck{Verdict::kAccepted, Channel::kControl, 1})));
  EXPECT_TRUE(pump([&] { return stats(0).hello_refused == 1; }));
  EXPECT_GE(stats(0).connect_retries, 1u);
}

}  // namespace
}  // namespace mcast::testing
