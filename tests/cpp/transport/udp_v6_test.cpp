// The UDP transport over IPv6, on ::1, where it differs from IPv4: sizes, groups, texts, streams.
// Loopback has no route for multicast of IPv6, so datagrams are sent between namespaces
// (tests/python/multihost/test_multihost_ipv6.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

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

TEST_F(UdpV6Test, FramesTravelBothWays) {
  make_nodes(2);
  const PeerId there = introduce(0, 1), back = introduce(1, 0);
  for (const Channel channel : {Channel::kControl, Channel::kRepair, Channel::kReduce}) {
    node(0).send(there, channel, pattern(60000, 1));
    node(1).send(back, channel, pattern(60000, 2));
  }
  ASSERT_TRUE(pump([&] { return node(0).frames.size() == 3 && node(1).frames.size() == 3; }));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(node(0).frames[i].data, pattern(60000, 2));
    EXPECT_EQ(node(1).frames[i].data, pattern(60000, 1));
  }
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
