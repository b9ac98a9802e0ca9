// The contract's suite over guarded endpoints, in both modes and striped, with keys that a few
// records use up; and who comes to a guarded endpoint without what it takes.
#include <gmock/gmock.h>

#include "transport/some_identity.h"
#include "transport/transport_contract.h"
#include "transport/udp_stream_world.h"

namespace mcast::testing {
namespace {

template <crypto::Mode kMode>
struct Guarded : UdpWorld {
  Guarded() { loopback = true; }
  std::unique_ptr<Transport> make() {
    options.identity = some_identity(kMode);
    return UdpWorld::make();
  }
};
template <crypto::Mode kMode>
struct GuardedStripe : UdpWorld {
  GuardedStripe() { loopback = true; }
  std::unique_ptr<Transport> make() {
    options.identity = some_identity(kMode);
    return make_striped(3);
  }
};
using GuardedWorlds =
    ::testing::Types<Guarded<crypto::Mode::kAuth>, Guarded<crypto::Mode::kSealed>,
                     GuardedStripe<crypto::Mode::kAuth>, GuardedStripe<crypto::Mode::kSealed>>;
INSTANTIATE_TYPED_TEST_SUITE_P(GuardedUdp, TransportContract, GuardedWorlds);

class GuardedStream : public UdpStreamTest {
 protected:
  void SetUp() override { guard(1); }
  void guard(unsigned secret) {
    world_.options.identity = some_identity(crypto::Mode::kSealed, secret);
  }
  void make_guarded(unsigned secret = 1) {
    guard(secret);
    make_nodes(1);
  }
  // Only this node goes on, for so long.
  void poll_only(size_t i, Nanos time) {
    for (const Nanos end = world_.now() + time; world_.now() < end;) {
      node(i).st().poll(node(i), world_.now());
      world_.shift += 50 * kMilli;
    }
  }
  // One of its own, whatever others do.
  void expect_working(size_t a, size_t b) {
    const size_t before = node(b).frames.size();
    node(a).send(introduce(a, b), Channel::kRepair, pattern(50000, 9));
    ASSERT_TRUE(pump([&] { return node(b).frames.size() > before; }));
    EXPECT_EQ(node(b).frames.back().data, pattern(50000, 9));
  }
};

TEST_F(GuardedStream, ChallengesWhoeverComesAndAnswersNoStranger) {
  make_guarded();
  make_guarded();
  const Fd stranger = raw_connect(node(0).st().address(true));
  Buffer received;
  EXPECT_TRUE(raw_send(stranger, pattern(crypto::kGuardedHelloSize, 3)));
  EXPECT_TRUE(closed(stranger, &received));
  EXPECT_EQ(received.size(), crypto::kChallengeSize);
  EXPECT_EQ(stats(0).hello_refused, 1u);
  expect_working(1, 0);
}

TEST_F(GuardedStream, AHelloOfVersion1IsNoHello) {
  make_guarded();
  make_guarded();
  const Fd stranger = raw_connect(node(0).st().address(true));
  EXPECT_TRUE(raw_send(stranger, encode(hello_to(0, 77))));
  settle();
  world_.shift += HalfOpen::kPatience;
  EXPECT_TRUE(closed(stranger));
  EXPECT_EQ(stats(0).hello_timeouts, 1u);
  expect_working(1, 0);
}

// Attack 6: many half-open connections.
TEST_F(GuardedStream, ASiegeKeepsNobodyOut) {
  make_guarded();
  make_guarded();
  std::vector<Fd> siege;
  for (int i = 0; i < 100; i++) {
    siege.push_back(raw_connect(node(0).st().address(true)));
    poll_all();
  }
  expect_working(1, 0);
  EXPECT_GT(stats(0).crowded_out, 0u);
}

TEST_F(GuardedStream, AnotherSecretGetsNowhere) {
  make_guarded(1);
  make_guarded(2);
  node(1).send(introduce(1, 0), Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] {
    world_.shift += 10 * kMilli;
    return !node(1).downs.empty();
  }));
  EXPECT_GT(stats(0).hello_refused, 0u);
  EXPECT_TRUE(node(0).frames.empty());
}

TEST_F(GuardedStream, AnUnguardedEndpointIsNamed) {
  make_guarded();
  world_.options.identity = nullptr;
  make_nodes(1);
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] {
    world_.shift += 10 * kMilli;
    return !node(0).downs.empty();
  }));
  EXPECT_THAT(node(0).downs[0].why.message(), ::testing::HasSubstr("is its security off?"));
}

// As long as an unguarded endpoint waits.
TEST_F(GuardedStream, WhoStandsStillBeforeItsChallengeIsWaitedFor) {
  make_guarded();
  make_guarded();
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  poll_only(0, 2 * HalfOpen::kPatience);
  EXPECT_TRUE(node(0).downs.empty());
  EXPECT_TRUE(pump([&] { return !node(1).frames.empty(); }));
  expect_working(1, 0);
}

// Its place is given up, since strangers could keep it for ever, and it comes again.
TEST_F(GuardedStream, WhoStandsStillInsideOfItsHandshakeComesAgain) {
  for (const int polls : {0, 3}) {  // before its Hello, and after it
    const size_t a = nodes_.size(), b = a + 1;
    make_guarded();
    make_guarded();
    node(a).send(introduce(a, b), Channel::kControl, pattern(10, 1));
    poll_only(b, 100 * kMilli);
    for (int i = 0; i < polls; i++) node(a).st().poll(node(a), world_.now());
    poll_only(b, 2 * HalfOpen::kPatience);
    EXPECT_EQ(stats(b).hello_timeouts, 1u);
    EXPECT_TRUE(pump([&] { return !node(b).frames.empty(); }));
    settle();
    EXPECT_EQ(node(b).frames.size(), 1u);
    EXPECT_TRUE(node(a).downs.empty() && node(b).downs.empty());
    expect_working(b, a);
  }
}

// Who has the secret, and claims to be another endpoint, does not have that one's private key.
TEST_F(GuardedStream, TheKeyOfTheRecordIsTheOnlyOne) {
  make_guarded();
  make_guarded();
  StreamAddress wrong = node(0).st().address(true);
  wrong.key = some_identity(crypto::Mode::kSealed)->pair.public_key();
  node(1).send(node(1).st().add_peer(wrong), Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return !node(1).downs.empty(); }));
  EXPECT_THAT(node(1).downs[0].why.message(), ::testing::HasSubstr("its proof is wrong"));
}

// Nothing but its uid is known of it, so there is nowhere to go if it ends before its Confirm.
TEST_F(GuardedStream, WhoIsExpectedMayTryAgain) {
  make_guarded();
  const uint64_t uids[] = {77};
  node(0).st().expect(uids);
  const auto rank = some_identity(crypto::Mode::kSealed, 1);
  for (int i = 0; i < 3; i++) {
    const Fd fd = raw_connect(node(0).st().address(true));
    const auto hear = [&](size_t size) {
      Buffer bytes(size);
      EXPECT_TRUE(pump([&] {
        return ::recv(fd.get(), bytes.data(), size, MSG_DONTWAIT) == static_cast<ssize_t>(size);
      }));
      return bytes;
    };
    const Buffer challenge = hear(crypto::kChallengeSize);
    guarded::Connector connector(*rank, node(0).st().address(true), encode(hello_to(0, 77)));
    crypto::HelloBytes hello;
    ASSERT_TRUE(
        connector.on_challenge(ConstBytes(challenge).first<crypto::kChallengeSize>(), hello).ok());
    EXPECT_TRUE(raw_send(fd, hello));
    const Buffer ack = hear(crypto::kGuardedAckSize);
    crypto::ConfirmBytes confirm;
    const auto said = connector.on_ack(ConstBytes(ack).first<crypto::kGuardedAckSize>(), confirm);
    ASSERT_TRUE(said.ok() && *said);
    EXPECT_EQ((*said)->verdict, Verdict::kAccepted);
    settle();
    world_.shift += HalfOpen::kPatience;
    settle();
    EXPECT_TRUE(node(0).downs.empty());
  }
}

TEST_F(GuardedStream, ACaptureHoldsNoFrame) {
  make_guarded();
  StreamAddress at;
  const Fd listener = raw_listen(at);
  at.uid = 99;
  const PeerId peer = node(0).st().add_peer(at);
  node(0).send(peer, Channel::kControl, pattern(1000, 1));
  const Fd taken(::accept(listener.get(), nullptr, nullptr));
  settle();
  // Nothing was said: it waits for the Challenge.
  std::byte byte;
  EXPECT_EQ(::recv(taken.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(node(0).st().queued(peer, Channel::kControl), 1000u + kFramePrefix);
}

}  // namespace
}  // namespace mcast::testing
