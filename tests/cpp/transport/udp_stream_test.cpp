// What is particular to TCP streams: the handshake against strangers, garbage and silence, and
// failures that only raw sockets can produce. Raw sockets stay on 127.0.0.1.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/descriptors.h"
#include "support/seeds.h"
#include "transport/transport_contract.h"
#include "transport/udp_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

// Real sockets, and a clock that a test can push forward.
struct ShiftedWorld : UdpWorld {
  Nanos shift = 0;
  Nanos now() const { return UdpWorld::now() + shift; }
};

class UdpStreamTest : public TransportContract<ShiftedWorld> {
 protected:
  const UdpStats& stats(size_t i) { return static_cast<UdpTransport&>(*node(i).transport).stats(); }
  static Fd raw_connect(const StreamAddress& to) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = parse_ipv4(to.host, to.port);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.value()),
                        sizeof(sockaddr_in)),
              0);
    return fd;
  }
  static bool raw_send(const Fd& fd, ConstBytes bytes) {
    return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // The transport has closed its end, and what it sent before that.
  bool closed(const Fd& fd, Buffer* received = nullptr) {
    return pump([&] {
      std::byte bytes[64];
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got > 0 && received != nullptr) received->insert(received->end(), bytes, bytes + got);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    });
  }
  Hello hello_to(size_t i, uint64_t source) {
    Hello hello;
    hello.source = source;
    hello.target = node(i).st().address(true).uid;
    hello.listen_address.s_addr = htonl(INADDR_LOOPBACK);
    hello.listen_port = 1;
    return hello;
  }
  // A raw connection that the transport takes for a peer.
  Fd accepted_peer(uint64_t source, Channel channel = Channel::kControl) {
    Fd fd = raw_connect(node(0).st().address(true));
    Hello hello = hello_to(0, source);
    hello.channel = channel;
    EXPECT_TRUE(raw_send(fd, encode(hello)));
    Buffer ack;
    EXPECT_TRUE(pump([&] {
      std::byte bytes[kHelloAckSize];
      const ssize_t got = ::recv(fd.get(), bytes, kHelloAckSize - ack.size(), MSG_DONTWAIT);
      if (got > 0) ack.insert(ack.end(), bytes, bytes + got);
      return ack.size() == kHelloAckSize;
    }));
    return fd;
  }
  // A raw listener on 127.0.0.1 and its address.
  static Fd raw_listen(StreamAddress& address) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = ipv4_address({htonl(INADDR_LOOPBACK)}, 0);
    socklen_t length = sizeof at;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), length), 0);
    EXPECT_EQ(::listen(fd.get(), 8), 0);
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
    address.host = "127.0.0.1";
    address.port = ntohs(at.sin_port);
    return fd;
  }
  void expect_still_working() {
    make_nodes(1);
    const size_t last = nodes_.size() - 1;
    const size_t before = node(0).frames.size();
    const PeerId peer = introduce(last, 0);
    node(last).send(peer, Channel::kControl, pattern(64, 4));
    EXPECT_TRUE(pump([&] { return node(0).frames.size() > before; }));
    EXPECT_EQ(node(0).frames.back().data, pattern(64, 4));
  }
};

TEST_F(UdpStreamTest, UidsDifferAndAddressesAreNumeric) {
  make_nodes(2);
  const StreamAddress a = node(0).st().address(true), b = node(1).st().address(false);
  EXPECT_NE(a.uid, 0u);
  EXPECT_NE(a.uid, b.uid);
  EXPECT_EQ(a.host, "127.0.0.1");
  EXPECT_NE(a.port, 0);
  EXPECT_EQ(node(0).st().address(false).port, a.port);  // lo is the chosen interface
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
  const std::vector<uint64_t> seeds = test::seeds(50);
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
  { const Fd mute = raw_connect(node(0).st().address(true)); }  // closed without a word: no fault
  const Fd silent = raw_connect(node(0).st().address(true));
  const Fd slow = raw_connect(node(0).st().address(true));
  ASSERT_TRUE(raw_send(slow, ConstBytes(hello).first(31)));
  settle(20);
  EXPECT_EQ(stats(0).hello_timeouts, 0u);
  world_.shift += kHelloPatience;
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

TEST_F(UdpStreamTest, SilentConnectionsAreBoundedAndGiveWay) {
  make_nodes(1);
  std::vector<Fd> silent;
  for (size_t i = 0; i < kMaxUnauthenticated + 20; ++i) {
    silent.push_back(raw_connect(node(0).st().address(true)));
  }
  settle(20);
  world_.shift += 2 * kSecond;  // less than the patience, but others are waiting
  EXPECT_TRUE(closed(silent.front()));
  EXPECT_GE(stats(0).hello_timeouts, 1u);
  expect_still_working();
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
  // The bulk channels allow a little more.
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

TEST_F(UdpStreamTest, ARefusedConnectionIsRetriedThenReported) {
  make_nodes(1);
  StreamAddress nobody{4711, "127.0.0.1", 0};
  { const Fd fd = raw_listen(nobody); }  // a port where nobody listens any more
  const PeerId peer = node(0).st().add_peer(nobody);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return stats(0).connect_retries >= 2; }));
  EXPECT_TRUE(node(0).downs.empty());
  EXPECT_GT(node(0).st().queued(peer, Channel::kControl), 0u);
  world_.shift += kConnectPatience;
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_FALSE(node(0).downs[0].graceful);
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("Connection refused"));
  EXPECT_THAT(node(0).downs[0].why.message(),
              HasSubstr("127.0.0.1:" + std::to_string(nobody.port)));
  EXPECT_EQ(node(0).st().queued(peer, Channel::kControl), 0u);
}

TEST_F(UdpStreamTest, APeerThatListensLateIsReached) {
  make_nodes(1);
  StreamAddress late{4711, "127.0.0.1", 0};
  Fd reserved(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in at = ipv4_address({htonl(INADDR_LOOPBACK)}, 0);
  socklen_t length = sizeof at;
  ASSERT_EQ(::bind(reserved.get(), reinterpret_cast<sockaddr*>(&at), length), 0);
  ASSERT_EQ(::getsockname(reserved.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
  late.port = ntohs(at.sin_port);
  const PeerId peer = node(0).st().add_peer(late);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return stats(0).connect_retries >= 1; }));
  ASSERT_EQ(::listen(reserved.get(), 4), 0);
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

TEST_F(UdpStreamTest, AnImpostorOrAMuteListenerIsReported) {
  make_nodes(1);
  StreamAddress address{4711, "", 0};
  const Fd listener = raw_listen(address);  // the kernel accepts, nobody ever answers
  const PeerId peer = node(0).st().add_peer(address);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  settle(20);
  EXPECT_TRUE(node(0).downs.empty());
  world_.shift += world_.options.liveness_limit;
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_EQ(node(0).downs[0].peer, peer);
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("did not answer"));

  // An answer with the wrong uid: an attempt that failed.
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

// Takes all but `free` of the descriptors below the soft limit, which `more` may be opened beyond.
// In a process of their own: a hard limit that was lowered stays low.
void leave_descriptors(size_t free, uint64_t more) {
  const uint64_t soft = descriptor_use().open + 16;
  const struct rlimit limit { soft, soft + more };
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::exit(99);
  std::vector<int> taken;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
  for (size_t i = 0; i < free; i++) ::close(taken[i]);
}

TEST_F(UdpStreamTest, RunningOutOfDescriptorsIsReportedWithTheNumbers) {
  const auto connect_without = [&] {
    make_nodes(1);
    StreamAddress address{4711, "", 0};
    const Fd listener = raw_listen(address);
    leave_descriptors(0, 0);
    const std::string hard = std::to_string(descriptor_use().hard);
    node(0).send(node(0).st().add_peer(address), Channel::kControl, pattern(10, 1));
    if (!pump([&] { return stats(0).connect_retries >= 2; })) return 1;
    world_.shift += kConnectPatience;
    if (!pump([&] { return !node(0).downs.empty(); })) return 2;
    const Status& why = node(0).downs[0].why;
    if (why.code() != Code::kResourceExhausted) return 3;
    const std::string numbers = "Too many open files; " + hard + " descriptors are open";
    if (why.message().find(numbers) == std::string::npos) return 4;
    return why.message().find("hard limit " + hard) == std::string::npos ? 5 : 0;
  };
  EXPECT_EXIT(std::exit(connect_without()), ::testing::ExitedWithCode(0),
              "cannot open another connection: Too many open files; [0-9]+ descriptors are open");
}

TEST_F(UdpStreamTest, TheSoftLimitOfDescriptorsIsRaisedWhenItIsReached) {
  EXPECT_EXIT(
      {
        make_nodes(2);
        // None for the connector's socket; none for the acceptor's.
        leave_descriptors(0, 400);
        node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
        if (!pump([&] { return !node(1).frames.empty(); })) std::exit(1);
        leave_descriptors(1, 40);
        node(0).send(introduce(0, 1), Channel::kReduce, pattern(10, 1));
        if (!pump([&] { return node(1).frames.size() == 2; })) std::exit(2);
        std::exit(stats(1).accept_errors == 0 ? 0 : 3);
      },
      ::testing::ExitedWithCode(0), "^$");
}

TEST_F(UdpStreamTest, AYieldWithoutAConnectionIsReported) {
  make_nodes(1);
  StreamAddress address{4711, "", 0};
  const Fd listener = raw_listen(address);
  node(0).send(node(0).st().add_peer(address), Channel::kControl, pattern(10, 1));
  settle(10);
  const Fd c(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(c.valid());
  ASSERT_TRUE(raw_send(c, encode(HelloAck{Verdict::kYield, Channel::kControl, 4711})));
  ASSERT_TRUE(pump([&] { return stats(0).yielded == 1; }));
  settle(10);
  EXPECT_TRUE(node(0).downs.empty());
  world_.shift += world_.options.liveness_limit;
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("never came"));
}

TEST_F(UdpStreamTest, AnAddressThatIsNoneIsReported) {
  make_nodes(1);
  const PeerId peer = node(0).st().add_peer({1, "not-an-address", 5});
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("not-an-address"));
}

TEST_F(UdpStreamTest, OwnFramesBeyondTheLimitAreABugThatShows) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  node(0).send(peer, Channel::kControl, pattern(kMaxControlFrame + 1, 1));
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_EQ(node(0).downs[0].why.code(), Code::kInternal);
}

TEST_F(UdpStreamTest, FramesAfterCloseAreDroppedAndCounted) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return node(1).frames.size() == 1; }));
  ASSERT_TRUE(close(node(0)));
  node(0).send(peer, Channel::kControl, pattern(10, 2));
  settle(10);
  EXPECT_EQ(node(1).frames.size(), 1u);
  EXPECT_EQ(stats(0).frames_dropped, 1u);
}

TEST_F(UdpStreamTest, CloseBeforeTheConnectionStandsStillDelivers) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  for (int i = 0; i < 20; ++i) node(0).send(peer, Channel::kRepair, pattern(50'000, 1));
  ASSERT_TRUE(close(node(0)));
  node(0).transport.reset();
  ASSERT_TRUE(pump([&] { return !node(1).downs.empty(); }));
  EXPECT_EQ(node(1).frames_on(Channel::kRepair), std::vector<Buffer>(20, pattern(50'000, 1)));
  EXPECT_TRUE(node(1).downs[0].graceful) << node(1).downs[0].why.to_string();
}

TEST_F(UdpStreamTest, ClosingSendsTheGoodbyeAndTheEndOfInput) {
  make_nodes(1);
  const Fd fd = accepted_peer(7);
  ASSERT_TRUE(close(node(0)));  // our transport lives on: it is not its destruction that we see
  Buffer received;
  ASSERT_TRUE(closed(fd, &received));
  const auto goodbye = encode_prefix(kGoodbyeLength);
  EXPECT_EQ(received, to_buffer(goodbye));
}

TEST_F(UdpStreamTest, ALateConnectorFindsAClosingPeerGraceful) {
  make_nodes(2);
  ASSERT_TRUE(close(node(1)));
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_TRUE(node(0).downs[0].graceful) << node(0).downs[0].why.to_string();
}

// Both Hellos are under way before either side looks: the side with the lower uid keeps its
// connection, whichever side looks first.
TEST_F(UdpStreamTest, OneOfTwoCrossingConnectionsIsUsed) {
  for (size_t first : {0u, 1u, 0u, 1u, 0u, 1u}) {
    nodes_.clear();
    make_nodes(2);
    const PeerId at0 = introduce(0, 1), at1 = introduce(1, 0);
    node(0).send(at0, Channel::kControl, pattern(10, 1));
    node(1).send(at1, Channel::kControl, pattern(10, 2));
    node(first).st().poll(node(first), world_.now());
    node(1 - first).st().poll(node(1 - first), world_.now());
    ASSERT_TRUE(pump([&] { return node(0).frames.size() + node(1).frames.size() == 2; }));
    settle(5);
    EXPECT_EQ(stats(0).connections_opened, 1u);
    EXPECT_EQ(stats(1).connections_opened, 1u);
    EXPECT_EQ(stats(0).connect_retries + stats(1).connect_retries, 0u);
    EXPECT_EQ(node(0).frames_on(Channel::kControl), std::vector<Buffer>{pattern(10, 2)});
    EXPECT_EQ(node(1).frames_on(Channel::kControl), std::vector<Buffer>{pattern(10, 1)});
  }
}

TEST_F(UdpStreamTest, AForkedChildDoesNotHoldConnectionsOpen) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return node(1).frames.size() == 1; }));
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // lives on, like a DataLoader worker, until the test closes the pipe
    node(0).transport->abandon_after_fork();
    node(1).transport->abandon_after_fork();
    ::close(pipe_ends[1]);
    char byte;
    (void)!::read(pipe_ends[0], &byte, 1);
    ::_exit(0);
  }
  // The parent's endpoints work on, also those of its epoll instances.
  node(0).send(peer, Channel::kControl, pattern(10, 2));
  EXPECT_TRUE(pump([&] { return node(1).frames.size() == 2; }));
  node(1).transport.reset();
  EXPECT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mcast::testing
