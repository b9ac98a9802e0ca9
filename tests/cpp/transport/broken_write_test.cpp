// The kernel accepts no more data on a connection, without reporting its end. The peer must still
// be reported as lost; otherwise its frames would be dropped silently.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "transport/transport_contract.h"
#include "transport/udp_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

class BrokenWriteTest : public TransportContract<UdpWorld> {
 protected:
  const TcpStats& stats(size_t i) {
    return static_cast<UdpTransport&>(*node(i).transport).stream_stats();
  }

  // Connects node 0 to node 1 by the repair channel, and sends a frame in each direction.
  void connect() {
    make_nodes(2);
    peer_ = introduce(0, 1);
    const PeerId back = introduce(1, 0);
    node(0).send(peer_, Channel::kRepair, pattern(100, 1));
    ASSERT_TRUE(pump([&] { return node(1).frames.size() == 1; }));
    node(1).send(back, Channel::kRepair, pattern(100, 2));
    ASSERT_TRUE(pump([&] { return node(0).frames.size() == 1; }));
    back_ = back;
  }
  // Changes node 0's connection from outside: from now on nothing can be written to it.
  void break_writes() {
    int broken = 0;
    for (int fd = 3; fd < 256; ++fd) {
      const Endpoint to = peer_endpoint(fd);
      if (!to.address.known() || to.port != node(1).st().address(true).port) continue;
      EXPECT_EQ(::shutdown(fd, SHUT_WR), 0);
      ++broken;
    }
    ASSERT_EQ(broken, 1);
  }
  // Does not poll node 1, whose reaction is not tested here.
  bool poll_first_until_down() {
    for (int i = 0; i < kIdleRounds && node(0).downs.empty(); ++i) {
      node(0).st().poll(node(0), world_.now());
    }
    return !node(0).downs.empty();
  }

  PeerId peer_ = kNoPeer, back_ = kNoPeer;
};

TEST_F(BrokenWriteTest, BringsThePeerDownAndSaysWhy) {
  connect();
  break_writes();
  node(0).send(peer_, Channel::kRepair, pattern(100, 3));
  ASSERT_TRUE(poll_first_until_down()) << "its frames are dropped, and nobody is told";
  EXPECT_EQ(node(0).downs[0].peer, peer_);
  EXPECT_FALSE(node(0).downs[0].graceful);
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("Broken pipe"));
  node(0).send(peer_, Channel::kRepair, pattern(100, 4));
  node(0).st().poll(node(0), world_.now());
  EXPECT_EQ(node(0).downs.size(), 1u);
}

TEST_F(BrokenWriteTest, ArrivedFramesAreRead) {
  connect();
  for (size_t i = 0; i < 5; ++i) node(1).send(back_, Channel::kRepair, pattern(1000, i));
  node(1).st().poll(node(1), world_.now());
  break_writes();
  node(0).send(peer_, Channel::kRepair, pattern(100, 3));
  ASSERT_TRUE(poll_first_until_down());
  ASSERT_EQ(node(0).frames.size(), 6u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(node(0).frames[1 + i].data, pattern(1000, i));
}

// The frames are queued behind a full connection and written by poll().
TEST_F(BrokenWriteTest, WhileFramesWaitToo) {
  connect();
  for (size_t i = 0; i < 400; ++i) node(0).send(peer_, Channel::kRepair, pattern(60'000, i));
  ASSERT_GT(node(0).st().queued(peer_, Channel::kRepair), 0u);
  break_writes();
  // Makes room so that poll() writes: node 1's kernel takes what node 1 reads.
  for (int i = 0; i < kIdleRounds && node(0).downs.empty(); ++i) {
    poll_all();
    pass();
  }
  ASSERT_FALSE(node(0).downs.empty());
  EXPECT_EQ(node(0).st().queued(peer_, Channel::kRepair), 0u);
}

}  // namespace
}  // namespace mcast::testing
