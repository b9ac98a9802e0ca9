// The UDP transport over IPv6, on ::1, where it differs from IPv4: sizes, sources, counters of the
// kernel, texts. The contract suite runs over IPv6 too (transport_contract_test.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <set>

#include "transport/transport_contract.h"
#include "transport/udp_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

class UdpV6Test : public TransportContract<UdpV6World> {
 protected:
  Endpoint group(int n) { return multicast_endpoint(world_.address(n), true); }
};

TEST_F(UdpV6Test, GroupsAreTransientAndOfTheSite) {
  const Endpoint at = multicast_endpoint({0x12345678, 20001, false}, true);
  EXPECT_EQ(at.text(), "[ff15::6d63:6173:7434:5678]:20001");
  EXPECT_EQ(multicast_endpoint({0x12345678, 20001, false}, false).text(), "239.52.86.120:20001");
}

TEST_F(UdpV6Test, DatagramsLeaveRoomForALongerHeader) {
  world_.options.max_mtu = 1500;
  make_nodes(1);
  EXPECT_EQ(node(0).dg().max_datagram(world_.address(0)), 1452u);
  EXPECT_EQ(node(0).dg().header_bytes(), 48u);
  EXPECT_THAT(node(0).transport->describe(), HasSubstr("udp lo ::1 mtu 1500"));
  EXPECT_EQ(node(0).st().address(true).host, "::1");
  EXPECT_EQ(node(0).st().address(false).host, "::1");
}

TEST_F(UdpV6Test, DatagramsComeFromTheAddressOfTheirEndpoint) {
  struct Sources final : DatagramSink {
    explicit Sources(Datagram& of) : medium(of) {}
    void on_datagram(ConstBytes) override { seen.insert(medium.source().address); }
    Datagram& medium;
    std::set<IpAddress> seen;
  };
  world_.options.monitor = true;
  world_.options.allow = "fd00:99::/64";  // this host's own addresses are always allowed
  make_nodes(2);
  ASSERT_TRUE(node(0).dg().join(world_.address(0)).ok());
  Sources sources(node(0).dg());
  ASSERT_TRUE(pump([&] {
    EXPECT_TRUE(send_datagram(node(1), world_.address(0), pattern(100, 1)));
    EXPECT_TRUE(node(1).dg().flush());
    node(0).dg().receive(sources, 1 << 20);
    return !sources.seen.empty();
  }));
  const auto its = node(0).dg().sources_of(node(1).st().address(true));
  EXPECT_EQ(its, std::vector{*IpAddress::parse("::1")});
  EXPECT_EQ(sources.seen, std::set{*IpAddress::parse("::1")});
}

TEST_F(UdpV6Test, DatagramsForAnotherPortAreCounted) {
  make_nodes(1);
  ASSERT_TRUE(node(0).dg().join(world_.address(0)).ok());
  const uint64_t before = node(0).dg().ignored();
  const Fd out(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int lo = 1;
  ASSERT_EQ(::setsockopt(out.get(), IPPROTO_IPV6, IPV6_MULTICAST_IF, &lo, sizeof lo), 0);
  const SocketAddress to(Endpoint{group(0).address, 9});
  constexpr int kTimes = 50;
  for (int i = 0; i < kTimes; ++i) {
    EXPECT_EQ(::sendto(out.get(), "?", 1, 0, to.get(), to.size()), 1);
  }
  EXPECT_GE(node(0).dg().ignored(), before + kTimes);
}

TEST_F(UdpV6Test, PortInUseIsNamed) {
  make_nodes(1);
  MulticastAddress taken = world_.address(0);
  // Without SO_REUSEADDR.
  const Fd holder(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind_to(holder.get(), {group(0).address, 0}), 0);
  taken.port = local_endpoint(holder.get()).port;
  const Status status = node(0).dg().join(taken);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_THAT(status.message(), HasSubstr("bind [ff15::6d63:6173:74"));
  EXPECT_THAT(status.message(), HasSubstr("Address already in use"));
}

TEST_F(UdpV6Test, PeerOfIPv4IsNotReached) {
  world_.options.liveness_limit = 200 * kMilli;
  make_nodes(1);
  const PeerId peer = node(0).st().add_peer({4711, "127.0.0.1", 9});
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_THAT(node(0).downs[0].why.message(),
              HasSubstr("cannot connect to peer 127.0.0.1:9: Address family not supported"));
}

}  // namespace
}  // namespace mcast::testing
