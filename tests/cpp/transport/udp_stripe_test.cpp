// Streams over several interfaces at once: order and bytes are those of one stream, the load is
// shared, and a waiting frame takes no memory. The interfaces are addresses of loopback.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "transport/transport_contract.h"
#include "transport/udp/busy_rate.h"
#include "transport/udp_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

struct TwoAddresses : UdpWorld {
  TwoAddresses() { loopback = true; }
  std::unique_ptr<Transport> make() { return make_striped(2); }
};

class StripeTest : public TransportContract<TwoAddresses> {
 protected:
  const TcpStats& stats(size_t i) {
    return static_cast<UdpTransport&>(*node(i).transport).stream_stats();
  }
};

TEST_F(StripeTest, FramesKeepTheirOrderBothWays) {
  make_nodes(2);
  const PeerId there = introduce(0, 1), back = introduce(1, 0);
  std::vector<Buffer> sent[2];
  Rng rng(3);
  for (size_t i = 0; i < 3000; ++i) {
    const size_t from = rng.below(2);
    // Often tiny, sometimes of maximum length.
    const size_t size = rng.chance(0.2) ? kMaxBulkFrame - rng.below(100) : 1 + rng.below(300);
    sent[from].push_back(pattern(size, i));
    node(from).send(from == 0 ? there : back, Channel::kReduce, sent[from].back());
    if (rng.chance(0.1)) poll_all();
  }
  ASSERT_TRUE(pump([&] {
    return node(1).frames.size() >= sent[0].size() && node(0).frames.size() >= sent[1].size();
  }));
  for (size_t to : {0, 1}) {
    ASSERT_EQ(node(to).frames.size(), sent[1 - to].size());
    for (size_t i = 0; i < node(to).frames.size(); ++i) {
      ASSERT_EQ(node(to).frames[i].data, sent[1 - to][i]) << i;
    }
  }
  // One connection per address for the one channel that was used.
  EXPECT_EQ(stats(0).connections_opened, 2u);
  EXPECT_EQ(stats(1).connections_opened, 2u);
}

// A fast link has sent 2^32 frames in some hours.
TEST_F(StripeTest, NumbersOfFramesBeginAgainAfterTheLast) {
  world_.options.first_frame = UINT32_MAX - 100;
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  for (const Channel channel : {Channel::kRepair, Channel::kReduce}) {
    node(1).frames.clear();
    for (size_t i = 0; i < 300; ++i) node(0).send(peer, channel, pattern(1 + 211 * i, i));
    ASSERT_TRUE(pump([&] { return node(1).frames.size() == 300; }));
    for (size_t i = 0; i < 300; ++i) ASSERT_EQ(node(1).frames[i].data, pattern(1 + 211 * i, i));
  }
  EXPECT_EQ(stats(1).protocol_violations, 0u);
}

TEST_F(StripeTest, ControlFramesHaveOneConnection) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  for (size_t i = 0; i < 20; ++i) node(0).send(peer, Channel::kControl, pattern(100, i));
  ASSERT_TRUE(pump([&] { return node(1).frames.size() == 20; }));
  EXPECT_EQ(stats(0).connections_opened, 1u);
}

TEST_F(StripeTest, ABrokenConnectionNamesTheAddressAndEndsThePeer) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  for (size_t i = 0; i < 20; ++i) node(0).send(peer, Channel::kRepair, pattern(60'000, i));
  ASSERT_TRUE(pump([&] { return node(1).frames.size() == 20; }));
  node(1).transport.reset();
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_EQ(node(0).downs[0].peer, peer);
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("127.0.0."));
}

// The measured rate of a path does not depend on its share of the data or on the reader's pauses.
TEST(BusyRateOfAConnection, IsOfThePathAndNotOfTheDeal) {
  BusyRate rate;
  EXPECT_EQ(rate.value(), 0);
  uint64_t acked = 0, busy = 0, blocked = 0;
  const auto pass = [&](uint64_t bytes, uint64_t open, uint64_t held) {
    acked += bytes;
    busy += open + held;
    blocked += held;
    rate.update(acked, busy, blocked);
  };
  pass(100'000, 10'000, 0);
  EXPECT_EQ(rate.value(), 0) << "too little to tell";
  for (int i = 0; i < 5; ++i) pass(100'000, 10'000, 0);
  EXPECT_DOUBLE_EQ(rate.value(), 1e7);
  for (int i = 0; i < 50; ++i) pass(100'000, 10'000, 90'000);  // reader waits for another stripe
  EXPECT_DOUBLE_EQ(rate.value(), 1e7);
  for (int i = 0; i < 50; ++i) pass(0, 0, 0);  // nothing to send
  EXPECT_DOUBLE_EQ(rate.value(), 1e7);
  for (int i = 0; i < 500; ++i) pass(25'000, 10'000, 0);  // slower now: a second is enough
  EXPECT_NEAR(rate.value(), 2.5e6, 1e4);
  rate.update(acked + 1000, busy, blocked + 500);  // its times are not read at the same moment
  EXPECT_NEAR(rate.value(), 2.5e6, 1e5);
}

// A peer of raw sockets, with one connection per stripe, that sends arbitrary data.
class RawStripes {
 public:
  explicit RawStripes(const StreamAddress& to) {
    const auto endpoints = stripe_endpoints(to);
    EXPECT_TRUE(endpoints.ok() && endpoints->size() == 2);
    for (uint8_t stripe : {0, 1}) {
      fds_[stripe] = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(connect_to(fds_[stripe].get(), (*endpoints)[stripe]), 0);
      Hello hello;
      hello.channel = Channel::kReduce;
      hello.stripe = stripe;
      hello.stripes = 2;
      hello.source = 99;
      hello.target = to.uid;
      hello.listen_port = 1;
      const auto bytes = encode(hello);
      send_all(stripe, {bytes.begin(), bytes.end()});
    }
  }

  static Buffer frame(uint32_t number, const Buffer& data) {
    Buffer out;
    const auto length = encode_prefix(static_cast<uint32_t>(kFrameNumber + data.size()));
    const auto head = encode_prefix(number);
    out.insert(out.end(), length.begin(), length.end());
    out.insert(out.end(), head.begin(), head.end());
    out.insert(out.end(), data.begin(), data.end());
    return out;
  }
  void send_all(uint8_t stripe, const Buffer& bytes) {
    EXPECT_EQ(::send(fds_[stripe].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Sends frames 1, 2, ... on stripe 1 until the kernel takes no more. Returns the total number of
  // bytes taken.
  size_t push() {
    while (true) {
      if (rest_.empty()) {
        rest_ = frame(number_, pattern(kFrameBytes, number_));
        ++number_;
      }
      const ssize_t sent =
          ::send(fds_[1].get(), rest_.data(), rest_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return taken_;
      taken_ += static_cast<size_t>(sent);
      rest_.erase(rest_.begin(), rest_.begin() + sent);
    }
  }

  static constexpr size_t kFrameBytes = 50'000;

 private:
  Fd fds_[2];
  uint32_t number_ = 1;
  Buffer rest_;
  size_t taken_ = 0;
};

TEST_F(StripeTest, AFrameOutOfTurnWaitsWithoutMemory) {
  make_nodes(1);
  RawStripes peer(node(0).st().address(true));
  // Frame 0 is late: only the first of the others is read before it.
  size_t before = SIZE_MAX, taken = 0;
  while (before != taken) {
    before = taken;
    taken = peer.push();
    settle();
  }
  EXPECT_TRUE(node(0).frames.empty());
  EXPECT_LT(taken, 64u << 20);  // sockets' buffers; more would be our memory
  peer.send_all(0, RawStripes::frame(0, pattern(10, 0)));
  ASSERT_TRUE(pump([&] { return node(0).frames.size() >= (taken - 60'000) / 50'008; }));
  for (uint32_t i = 0; i < node(0).frames.size(); ++i) {
    ASSERT_EQ(node(0).frames[i].data, i == 0 ? pattern(10, 0) : pattern(RawStripes::kFrameBytes, i))
        << i;
  }
}

TEST_F(StripeTest, AHelloOfALargerStripeIsRefused) {
  make_nodes(1);
  Hello hello;
  hello.channel = Channel::kReduce;
  hello.stripes = 3;
  hello.source = 99;
  hello.target = node(0).st().address(true).uid;
  const auto endpoints = stripe_endpoints(node(0).st().address(true));
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect_to(fd.get(), (*endpoints)[0]), 0);
  const auto bytes = encode(hello);
  ASSERT_GT(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(pump([&] { return stats(0).hello_refused == 1; }));
}

}  // namespace
}  // namespace mcast::testing
