// Particulars of UDP datagrams: offloads and their fallback, buffers, the limit of addresses.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

#include "transport/transport_contract.h"
#include "transport/udp_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

// Credit is sent behind the data that waits at the interface.
TEST(UdpOptions, ASendBufferIsTwoMillisecondsOfAKnownLink) {
  const auto sndbuf = [](uint64_t rate, uint64_t asked) {
    Config config;
    config.link_rate = rate;
    config.sndbuf = asked;
    return UdpTransportOptions::from(config).sndbuf;
  };
  EXPECT_EQ(sndbuf(0, 1 << 20), 1u << 20);
  EXPECT_EQ(sndbuf(1'000'000'000, 1 << 20), 250'000u);
  EXPECT_EQ(sndbuf(100'000'000, 1 << 20), 65'536u);
  EXPECT_EQ(sndbuf(100'000'000'000, 1 << 20), 1u << 20);
  EXPECT_EQ(sndbuf(1'000'000'000, 4096), 4096u) << "less was asked for";
}

class UdpDatagramTest : public TransportContract<UdpWorld> {
 protected:
  const UdpStats& stats(size_t i) {
    return static_cast<UdpTransport&>(*node(i).transport).datagram_stats();
  }
  // Finds the transport's own UDP sockets.
  static std::vector<int> udp_sockets() {
    std::vector<int> out;
    for (int fd = 3; fd < 256; ++fd) {
      int type = 0;
      socklen_t length = sizeof type;
      if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_DGRAM) {
        out.push_back(fd);
      }
    }
    return out;
  }
  std::vector<Buffer> send_many(size_t count, size_t size) {
    std::vector<Buffer> sent;
    for (size_t i = 0; i < count; ++i) {
      sent.push_back(pattern(size, i));
      EXPECT_TRUE(send_datagram(node(0), world_.address(0), sent.back()));
    }
    EXPECT_TRUE(flush(node(0)));
    return sent;
  }
};

// The datagrams reach the host, since it has joined the address, and no socket reads them.
TEST_F(UdpDatagramTest, CountsDatagramsForAnotherPort) {
  make_nodes(1);
  MulticastAddress joined = world_.address(0);
  joined.loopback = true;
  ASSERT_TRUE(node(0).dg().join(joined).ok());
  const uint64_t before = node(0).dg().ignored();
  const int out = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(out, 0);
  ip_mreqn by{};
  by.imr_address.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::setsockopt(out, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(239u << 24 | (joined.group & 0xffffff));
  to.sin_port = htons(9);
  constexpr int kTimes = 50;
  for (int i = 0; i < kTimes; ++i) {
    EXPECT_EQ(::sendto(out, "?", 1, 0, reinterpret_cast<sockaddr*>(&to), sizeof to), 1);
  }
  ::close(out);
  EXPECT_GE(node(0).dg().ignored(), before + kTimes);
}

// A datagram comes from an address of its endpoint, whichever interface of a stripe it uses. A lane
// detects by the source that another host repeats a member's datagram.
TEST_F(UdpDatagramTest, ComesFromWhereItsEndpointListens) {
  struct Sources final : DatagramSink {
    explicit Sources(Datagram& of) : medium(of) {}
    void on_datagram(ConstBytes) override { seen.insert(medium.source().address); }
    Datagram& medium;
    std::set<IpAddress> seen;
  };
  world_.options.monitor = true;
  make_nodes(1);
  nodes_.push_back(std::make_unique<Node>());
  node(1).transport = world_.make_striped(3);
  for (const bool loopback : {true, false}) {
    MulticastAddress to = world_.address(0);
    to.loopback = loopback;
    for (size_t from = 0; from < (world_.loopback ? 2u : 1u); from++) {  // the stripe is there
      ASSERT_TRUE(node(0).dg().join(to).ok());
      Sources sources(node(0).dg());
      ASSERT_TRUE(pump([&] {
        EXPECT_TRUE(send_datagram(node(from), to, pattern(100, 1)));
        EXPECT_TRUE(node(from).dg().flush());
        node(0).dg().receive(sources, 1 << 20);
        return sources.seen.size() >= (from == 1 && !loopback ? 3u : 1u);
      }));
      node(0).dg().leave(to);
      const auto its = node(0).dg().sources_of(node(from).st().address(loopback));
      for (const IpAddress& one : sources.seen) {
        EXPECT_THAT(its, ::testing::Contains(one)) << one.text();
      }
    }
  }
  EXPECT_TRUE(node(0).dg().sources_of({.uid = 1, .host = "sim", .port = 1}).empty());
}

TEST_F(UdpDatagramTest, BatchesTravelAsSuperPackets) {
  make_nodes(2);
  if (!stats(0).gso || !stats(1).gro) GTEST_FAIL() << "Linux 5.0 or later is needed";
  ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
  const auto sent = send_many(128, 1000);
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == sent.size(); }));
  EXPECT_EQ(node(1).datagrams, sent);
  EXPECT_EQ(stats(0).send_calls, 2u);  // 64 segments each
  EXPECT_EQ(stats(0).datagrams_sent, 128u);
  EXPECT_EQ(stats(1).receive_calls, 2u);
  EXPECT_EQ(stats(1).datagrams_received, 128u);
  EXPECT_EQ(stats(0).gso_fallbacks, 0u);
}

TEST_F(UdpDatagramTest, ABatchNeverExceedsTheLargestPayload) {
  make_nodes(2);
  ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
  const size_t size = 8972;  // seven fit into 65507 bytes
  const auto sent = send_many(21, size);
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == sent.size(); }));
  EXPECT_EQ(node(1).datagrams, sent);
  EXPECT_EQ(stats(0).send_calls, 3u);
}

// Two groups share an address, and one of them has no other member on this host. Each batch is sent
// with its group's setting. (Loopback always returns datagrams, so all of them arrive here.)
TEST_F(UdpDatagramTest, EachBatchIsEchoedAsItsGroupWants) {
  make_nodes(2);
  ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
  const auto echoing = [&] {
    int count = 0;
    for (const int fd : udp_sockets()) {
      int on = 0;
      socklen_t length = sizeof on;
      EXPECT_EQ(::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &on, &length), 0);
      count += on;
    }
    return count;
  };
  const int at_first = echoing();
  std::vector<Buffer> sent;
  const auto send = [&](Echo echo) {
    sent.push_back(pattern(900, sent.size()));
    EXPECT_TRUE(send_datagram(node(0), world_.address(0), sent.back(), echo));
  };
  for (int i = 0; i < 3; ++i) send(Echo::kOff);
  send(Echo::kOn);  // a batch of its own
  EXPECT_EQ(echoing(), at_first - 1);
  EXPECT_EQ(stats(0).send_calls, 1u);
  ASSERT_TRUE(flush(node(0)));
  EXPECT_EQ(echoing(), at_first);
  send(Echo::kOff);
  ASSERT_TRUE(flush(node(0)));
  EXPECT_EQ(echoing(), at_first - 1);
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == sent.size(); }));
  EXPECT_EQ(node(1).datagrams, sent);
}

TEST_F(UdpDatagramTest, OffloadsCanBeSwitchedOff) {
  world_.options.gso = world_.options.gro = false;
  make_nodes(2);
  ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
  const auto sent = send_many(100, 900);
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == sent.size(); }));
  EXPECT_EQ(node(1).datagrams, sent);
  EXPECT_EQ(stats(1).receive_calls, 100u);
  EXPECT_EQ(stats(0).gso_fallbacks, 0u);
  EXPECT_THAT(node(0).transport->describe(), HasSubstr("gso off gro off"));
}

TEST_F(UdpDatagramTest, FallsBackWhenTheKernelRefusesSegmentation) {
  make_nodes(1);
  // Linux refuses UDP_SEGMENT with EINVAL on a socket that sends no checksums, so this is a real
  // refusal.
  for (int fd : udp_sockets()) {
    const int on = 1;
    ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &on, sizeof on), 0);
  }
  make_nodes(1);
  ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
  ASSERT_TRUE(stats(0).gso);
  auto sent = send_many(150, 700);
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == sent.size(); }));
  EXPECT_EQ(node(1).datagrams, sent);  // nothing lost or duplicated
  EXPECT_FALSE(stats(0).gso);
  EXPECT_EQ(stats(0).gso_fallbacks, 1u);
  EXPECT_EQ(stats(0).dropped_batches, 0u);
  EXPECT_THAT(node(0).transport->describe(), HasSubstr("gso off (Invalid argument)"));
  EXPECT_TRUE(stats(1).gso);
}

TEST_F(UdpDatagramTest, ABatchThatCannotBeSentIsDroppedAndCounted) {
  make_nodes(1);
  for (int fd : udp_sockets()) (void)::shutdown(fd, SHUT_WR);  // sends fail with EPIPE
  send_many(70, 500);
  EXPECT_EQ(stats(0).dropped_datagrams, 70u);
  EXPECT_EQ(stats(0).dropped_batches, 2u);
  EXPECT_EQ(stats(0).send_errors, 2u);
  EXPECT_TRUE(stats(0).gso);  // segmentation is not the cause
  EXPECT_EQ(stats(0).datagrams_sent, 0u);
}

// Each set of members has its own port, and a rank of a large job is in many groups.
TEST_F(UdpDatagramTest, HundredsOfPortsAreReadAndLeftOneByOne) {
  constexpr int kPorts = 300;
  make_nodes(2);
  const auto port = [&](int i) {
    MulticastAddress at = world_.address(0);
    at.port = static_cast<uint16_t>(at.port + 2 * i);
    return at;
  };
  for (int i = 0; i < kPorts; ++i) ASSERT_TRUE(node(1).dg().join(port(i)).ok()) << i;
  EXPECT_TRUE(node(1).dg().join(port(3)).ok());  // counted, not a new socket
  const auto send_to_all = [&] {
    for (int i = 0; i < kPorts; ++i) {
      ASSERT_TRUE(send_datagram(node(0), port(i), pattern(100, static_cast<uint64_t>(i))));
    }
    ASSERT_TRUE(flush(node(0)));
  };
  send_to_all();
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == kPorts; }));
  // Some that are read in every call, and others.
  for (const int i : {0, 1, 3, 5, kPorts - 1}) node(1).dg().leave(port(i));
  node(1).datagrams.clear();
  send_to_all();
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == kPorts - 4; })) << "3: joined twice";
  for (const int i : {0, 1}) ASSERT_TRUE(node(1).dg().join(port(i)).ok());
  node(1).datagrams.clear();
  send_to_all();
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == kPorts - 2; }));
}

// Otherwise a rank in hundreds of groups would pay for all of them in each poll.
TEST_F(UdpDatagramTest, IdleSocketsCostNoCalls) {
  make_nodes(1);
  MulticastAddress at = world_.address(0);
  struct Nothing final : DatagramSink {
    void on_datagram(ConstBytes) override {}
  } nothing;
  uint64_t cost[2] = {};
  for (const int round : {0, 1}) {
    for (int i = 0; i < 250; ++i, at.port += 2) ASSERT_TRUE(node(0).dg().join(at).ok());
    const uint64_t before = stats(0).empty_reads;
    for (int i = 0; i < 100; ++i) EXPECT_EQ(node(0).dg().receive(nothing, 1 << 20), 0u);
    cost[round] = stats(0).empty_reads - before;
  }
  EXPECT_EQ(cost[0], cost[1]);
  EXPECT_LE(cost[1], 300u);
}

TEST_F(UdpDatagramTest, AddressesBeyondTheLimitAreRefused) {
  make_nodes(1);
  MulticastAddress at = world_.address(0);
  for (size_t i = 0; i < kMaxJoined; ++i, at.port++) ASSERT_TRUE(node(0).dg().join(at).ok()) << i;
  EXPECT_EQ(node(0).dg().join(at).code(), Code::kResourceExhausted);
  node(0).dg().leave(world_.address(0));
  EXPECT_TRUE(node(0).dg().join(at).ok());
}

// Another program uses the port without SO_REUSEADDR: the error names the address.
TEST_F(UdpDatagramTest, APortInUseIsNamed) {
  make_nodes(1);
  const int other = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(other, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  ASSERT_EQ(::bind(other, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  ASSERT_EQ(::getsockname(other, reinterpret_cast<sockaddr*>(&any), &length), 0);
  MulticastAddress taken = world_.address(0);
  taken.port = ntohs(any.sin_port);
  const Status status = node(0).dg().join(taken);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_THAT(status.message(), HasSubstr(":" + std::to_string(taken.port)));
  EXPECT_THAT(status.message(), HasSubstr("bind 239."));
  EXPECT_THAT(status.message(), HasSubstr("Address already in use"));
  ::close(other);
  EXPECT_TRUE(node(0).dg().join(taken).ok());
}

TEST_F(UdpDatagramTest, ReceiveStopsAtTheLimitAndServesAllSockets) {
  make_nodes(2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(node(1).dg().join(world_.address(i)).ok());
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 3; ++i) {  // one super-packet of 10 x 1000 each
      for (int k = 0; k < 10; ++k) {
        ASSERT_TRUE(
            send_datagram(node(0), world_.address(i), Buffer(1000, static_cast<std::byte>(i))));
      }
    }
  }
  ASSERT_TRUE(flush(node(0)));
  EXPECT_EQ(node(1).dg().receive(node(1), 25'000), 30u);
  std::vector<int> per_socket(3);
  for (const Buffer& d : node(1).datagrams) ++per_socket[static_cast<size_t>(d[0])];
  EXPECT_EQ(per_socket, (std::vector<int>{10, 10, 10}));
  ASSERT_TRUE(pump([&] { return node(1).datagrams.size() == 120; }));
  EXPECT_EQ(node(1).dg().receive(node(1), 25'000), 0u);
}

TEST_F(UdpDatagramTest, SinksMayLeaveAndJoin) {
  struct Leaver : DatagramSink {
    Datagram* datagram = nullptr;
    MulticastAddress from, next;
    int calls = 0;
    void on_datagram(ConstBytes) override {
      if (++calls > 1) return;
      datagram->leave(from);
      EXPECT_TRUE(datagram->join(next).ok());
    }
  } sink;
  make_nodes(2);
  sink.datagram = &node(1).dg();
  sink.from = world_.address(0);
  sink.next = world_.address(1);
  ASSERT_TRUE(node(1).dg().join(sink.from).ok());
  send_many(10, 100);
  EXPECT_EQ(node(1).dg().receive(sink, 1 << 20), 10u);  // the rest of the super-packet
  EXPECT_EQ(node(1).dg().receive(sink, 1 << 20), 0u);
}

TEST_F(UdpDatagramTest, BudgetAndSizesFollowTheSettings) {
  world_.options.rcvbuf = 160'000;
  world_.options.max_mtu = 1500;
  make_nodes(1);
  const size_t before = node(0).dg().receive_budget();
  EXPECT_GE(before, 100'000u);  // at least the request, less bookkeeping
  EXPECT_LE(before, 2 * 160'000 * 5 / 8);
  ASSERT_TRUE(node(0).dg().join(world_.address(0)).ok());
  EXPECT_EQ(node(0).dg().receive_budget(), before);
  EXPECT_EQ(node(0).dg().max_datagram(world_.address(0)), 1500u - 28);
  world_.options.max_mtu = 65535;
  make_nodes(1);
  EXPECT_EQ(node(1).dg().max_datagram(world_.address(0)), 65507u);
}

TEST_F(UdpDatagramTest, TheBudgetHoldsWhatItPromises) {
  world_.options.rcvbuf = 200'000;
  make_nodes(2);
  ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
  const size_t count = node(1).dg().receive_budget() / 1440;
  const auto sent = send_many(count, 1440);
  EXPECT_TRUE(pump([&] { return node(1).datagrams.size() >= count; }));
  EXPECT_EQ(node(1).datagrams, sent);
}

TEST_F(UdpDatagramTest, DescribesInterfaceBuffersAndOffloads) {
  world_.options.rcvbuf = 1u << 30;
  make_nodes(1);
  const std::string text = node(0).transport->describe();
  EXPECT_THAT(text, HasSubstr("udp lo 127.0.0.1 mtu 9000 rcvbuf "));
  EXPECT_THAT(text, HasSubstr(" sndbuf "));
  EXPECT_THAT(text, HasSubstr("gso on gro on"));
}

TEST(UdpViable, SaysWhyNot) {
  UdpTransportOptions options;
  options.interface = "=lo";
  EXPECT_TRUE(udp_viable(options).ok()) << udp_viable(options).to_string();
  options.interface = "=nosuchnic0";
  EXPECT_EQ(udp_viable(options).code(), Code::kUnavailable);
  EXPECT_THAT(udp_viable(options).message(), HasSubstr("nosuchnic0"));
  options.interface = "=";
  EXPECT_EQ(make_udp_transport(options).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace mcast::testing
