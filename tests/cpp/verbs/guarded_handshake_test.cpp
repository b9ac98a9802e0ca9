// How guarded connections over verbs are made, and who does not get one: many at once, strangers,
// other secrets and modes, messages that are changed, truncated or lost in transit.
#include <arpa/inet.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "transport/verbs/rc_guarded_handshake.h"
#include "verbs/guarded_world.h"

namespace mcast::testing {

template <crypto::Mode kMode>
struct GuardedVerbsWorld : FakeVerbsWorld {
  std::unique_ptr<Transport> make() {
    options.identity = some_identity(kMode);
    return FakeVerbsWorld::make();
  }
};
using GuardedVerbsWorlds = ::testing::Types<GuardedVerbsWorld<crypto::Mode::kAuth>,
                                            GuardedVerbsWorld<crypto::Mode::kSealed>>;
INSTANTIATE_TYPED_TEST_SUITE_P(GuardedFakeVerbs, TransportContract, GuardedVerbsWorlds);

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VerbsHandshake : public GuardedVerbs {};

TEST_F(VerbsHandshake, TheAcceptorSpeaksFirstAndThenEachInTurn) {
  add_sealed(2);
  std::vector<size_t> sizes;
  fake().on_message = [&sizes](std::vector<std::byte>& bytes, uint32_t) {
    sizes.push_back(bytes.size());
    return true;
  };
  peer = introduce(0, 1);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  // The connector sends nothing before the acceptor has polled.
  for (int i = 0; i < 10; i++) node(0).st().poll(node(0), now += kMilli);
  EXPECT_TRUE(sizes.empty());
  poll();
  ASSERT_EQ(node(1).frames.size(), 1u);
  EXPECT_THAT(sizes,
              ElementsAre(crypto::kGuardedHelloSize, crypto::kGuardedAckSize, crypto::kConfirmSize,
                          crypto::record_size(8, false), crypto::record_size(8 + 10, false)));
}

TEST_F(VerbsHandshake, TwentyConnectorsAtOnceAllGetIn) {
  add_sealed(21);
  for (size_t i = 1; i <= 20; i++) {
    node(i).send(introduce(i, 0), Channel::kControl, pattern(20, i));
  }
  poll(10);
  EXPECT_EQ(node(0).frames.size(), 20u);
  EXPECT_EQ(stats(0).crowded_out, 0u);
  for (const auto& n : nodes) EXPECT_TRUE(n->downs.empty());
}

TEST_F(VerbsHandshake, MoreThanThereArePlacesForComeLaterAndNoneIsDropped) {
  constexpr size_t kMany = 2 * verbs::kPlacesOfUnknown;
  add_sealed(kMany + 1);
  for (size_t i = 1; i <= kMany; i++) {
    node(i).send(introduce(i, 0), Channel::kControl, pattern(20, i));
  }
  poll(300);
  EXPECT_EQ(node(0).frames.size(), kMany);
  EXPECT_GT(stats(0).crowded_out, 0u);
  EXPECT_EQ(stats(0).connections_opened, kMany);
  for (const auto& n : nodes) EXPECT_TRUE(n->downs.empty());
}

// Their Hellos never arrive: each holds its place until its time is over, and none of a known peer.
TEST_F(VerbsHandshake, StrangersThatSayNothingKeepOnlyStrangersOut) {
  constexpr size_t kMany = verbs::kPlacesOfUnknown + 5;
  add_sealed(kMany + 2);
  change_first(crypto::kGuardedHelloSize, drop, static_cast<int>(verbs::kPlacesOfUnknown));
  for (size_t i = 1; i <= kMany; i++) {
    node(i).send(introduce(i, 0), Channel::kControl, pattern(20, i));
  }
  poll(100);
  EXPECT_GT(stats(0).crowded_out, 0u);
  EXPECT_TRUE(node(0).frames.empty());
  introduce(0, kMany + 1);
  expect_working(kMany + 1, 0);
  poll(2100);
  EXPECT_EQ(stats(0).hello_timeouts, verbs::kPlacesOfUnknown);
  EXPECT_EQ(node(0).frames.size(), kMany + 1) << "all try again, and get in";
  for (const Cause cause : {Cause::crowded_out, Cause::hello_timeouts}) {
    EXPECT_TRUE(std::any_of(node(0).refusals.begin(), node(0).refusals.end(), [cause](auto& r) {
      return r.first == cause && r.second.address == IpAddress::v4(0x7f000001);
    }));
  }
}

TEST_F(VerbsHandshake, ImpostorGetsTwoPlacesAndAffectsNoPeer) {
  add_sealed(2);
  const PeerId back = introduce(1, 0);
  const StreamAddress at = node(1).st().address(false);
  verbs::Hello hello;
  hello.source = node(0).st().address(false).uid;
  hello.target = at.uid;
  std::vector<std::unique_ptr<RawConnector>> raw;
  for (size_t i = 0; i < verbs::kPlacesOfPeer + 1; i++) {
    raw.push_back(std::make_unique<RawConnector>(fake(), at.port));
    raw.back()->ask(encode(hello, crypto::kGuardedStreamVersion));
    poll(3);
    const auto [event, data] = raw.back()->answer();
    if (i < verbs::kPlacesOfPeer) {
      EXPECT_EQ(event, RDMA_CM_EVENT_ESTABLISHED);
      EXPECT_EQ(Buffer(data.begin(), data.begin() + 4),
                (Buffer{std::byte{'M'}, std::byte{'C'}, std::byte{'S'}, std::byte{'C'}}));
    } else {
      EXPECT_EQ(event, RDMA_CM_EVENT_REJECTED);
      EXPECT_EQ(verbs::decode_refusal(data), verbs::Refusal::kLater);
    }
  }
  EXPECT_EQ(stats(1).crowded_out, 1u);
  // The peer itself is not affected, and can be reached.
  node(1).send(back, Channel::kControl, pattern(10, 2));
  poll(50);
  EXPECT_EQ(node(0).frames.size(), 1u);
  expect_working(0, 1);
  poll(2100);
  EXPECT_EQ(stats(1).hello_timeouts, verbs::kPlacesOfPeer);
  EXPECT_TRUE(node(1).downs.empty());
}

TEST_F(VerbsHandshake, RequestsOfVersion1OrForOthersAreRefused) {
  add_sealed(1);
  const StreamAddress at = node(0).st().address(false);
  verbs::Hello hello;
  hello.source = 5;
  hello.target = at.uid;
  verbs::Hello other = hello;
  other.target ^= 1;
  const Buffer garbage = pattern(32, 1);
  const auto old = encode(hello), wrong = encode(other, crypto::kGuardedStreamVersion);
  uint64_t count = 0;
  for (const ConstBytes request : {ConstBytes(old), ConstBytes(wrong), ConstBytes(garbage)}) {
    RawConnector raw(fake(), at.port);
    raw.ask(request);
    poll(3);
    const auto [event, data] = raw.answer();
    EXPECT_EQ(event, RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(verbs::decode_refusal(data), verbs::Refusal::kStranger);
    EXPECT_EQ(stats(0).hello_refused, ++count);
    EXPECT_EQ(node(0).refusals.back().second.address, IpAddress::v4(0x7f000001));
    EXPECT_NE(node(0).refusals.back().second.port, 0);
  }
}

TEST_F(VerbsHandshake, AnotherSecretGetsNowhereAndIsNamed) {
  add(some_identity(Mode::kSealed, 1));
  add(some_identity(Mode::kSealed, 2));
  node(1).send(introduce(1, 0), Channel::kControl, pattern(10, 1));
  poll(static_cast<int>(world.options.liveness_limit / kMilli) + 500);
  EXPECT_THAT(down(1), AllOf(HasSubstr("no connection to peer 127.0.0.1"),
                             HasSubstr("it ended the handshake: it has another secret")));
  EXPECT_GT(stats(0).hello_refused, 0u);
  EXPECT_EQ(node(0).refusals.at(0).first, Cause::hello_refused);
  EXPECT_EQ(node(0).refusals[0].second.address, IpAddress::v4(0x7f000001));
  EXPECT_TRUE(node(0).frames.empty());
}

TEST_F(VerbsHandshake, AnotherModeIsNamed) {
  add(some_identity(Mode::kSealed));
  add(some_identity(Mode::kAuth));
  node(1).send(introduce(1, 0), Channel::kControl, pattern(10, 1));
  poll();
  EXPECT_THAT(down(1), HasSubstr("cannot make a guarded connection to peer 127.0.0.1"));
  EXPECT_THAT(down(1), HasSubstr("its security setting differs from ours"));
}

TEST_F(VerbsHandshake, WithAndWithoutAGuardThereIsNoConnection) {
  add(some_identity(Mode::kSealed));
  add(nullptr);
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  node(1).send(introduce(1, 0), Channel::kControl, pattern(10, 1));
  poll();
  for (size_t i = 0; i < 2; i++) {
    EXPECT_THAT(down(i), HasSubstr("is not the expected process"));
    EXPECT_EQ(stats(i).hello_refused, 1u);
    EXPECT_TRUE(node(i).frames.empty());
  }
}

// A process with the secret that claims to be another endpoint does not have that endpoint's
// private key.
TEST_F(VerbsHandshake, TheKeyOfTheRecordIsTheOnlyOne) {
  add_sealed(3);
  StreamAddress wrong = node(0).st().address(false);
  wrong.key = some_identity(Mode::kSealed)->pair.public_key();
  node(1).send(node(1).st().add_peer(wrong), Channel::kControl, pattern(10, 1));
  poll();
  EXPECT_THAT(down(1), HasSubstr("its proof is wrong"));
  // The reverse: node 0 knows node 2 by another key.
  StreamAddress other = node(2).st().address(false);
  other.key = wrong.key;
  node(0).st().add_peer(other);
  node(2).send(introduce(2, 0), Channel::kControl, pattern(10, 1));
  poll(static_cast<int>(world.options.liveness_limit / kMilli) + 500);
  EXPECT_THAT(down(2), HasSubstr("it ended the handshake"));
  EXPECT_TRUE(node(0).frames.empty());
}

TEST_F(VerbsHandshake, AnotherKeyPublishedAfterItHasConnectedIsNamed) {
  add_sealed(2);
  connect();
  StreamAddress other = node(0).st().address(false);
  other.key = some_identity(Mode::kSealed)->pair.public_key();
  node(1).st().add_peer(other);
  poll();
  EXPECT_THAT(down(1), HasSubstr("two processes claim to be peer 127.0.0.1"));
}

TEST_F(VerbsHandshake, AKeyThatIsPublishedBetweenHelloAndConfirmCounts) {
  add_sealed(2);
  StreamAddress other = node(0).st().address(false);
  other.key = some_identity(Mode::kSealed)->pair.public_key();
  change_first(crypto::kConfirmSize, [&](std::vector<std::byte>&) {
    node(1).st().add_peer(other);
    return true;
  });
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  poll();
  EXPECT_TRUE(node(1).frames.empty());
}

// A changed message ends that attempt; the next one works.
TEST_F(VerbsHandshake, AHelloOrAConfirmThatIsChangedOrCutIsRefused) {
  const auto cut = [](std::vector<std::byte>& bytes) {
    bytes.pop_back();
    return true;
  };
  const auto longer = [](std::vector<std::byte>& bytes) {
    bytes.push_back({});
    return true;
  };
  for (const size_t size : {crypto::kGuardedHelloSize, crypto::kConfirmSize}) {
    for (const Change& change : {Change(flip), Change(cut), Change(longer)}) {
      add_sealed(2);
      const size_t a = nodes.size() - 2, b = nodes.size() - 1;
      change_first(size, change);
      node(a).send(introduce(a, b), Channel::kControl, pattern(10, 1));
      poll(100);
      EXPECT_EQ(stats(b).hello_refused, 1u) << size;
      EXPECT_EQ(node(b).refusals.size(), 1u);
      EXPECT_EQ(node(b).frames.size(), 1u) << "it tries again";
      EXPECT_TRUE(node(a).downs.empty());
    }
  }
}

TEST_F(VerbsHandshake, AnAnswerThatIsChangedOrCutIsNamed) {
  for (const bool cut : {false, true}) {
    add_sealed(2);
    const size_t a = nodes.size() - 2, b = nodes.size() - 1;
    change_first(crypto::kGuardedAckSize, [cut](std::vector<std::byte>& bytes) {
      if (cut) bytes.pop_back();
      return cut || flip(bytes);
    });
    node(a).send(introduce(a, b), Channel::kControl, pattern(10, 1));
    poll(100);
    EXPECT_THAT(down(a), AllOf(HasSubstr("cannot make a guarded connection to peer"),
                               HasSubstr("its proof is wrong")));
    EXPECT_TRUE(node(b).frames.empty());
  }
}

// A Hello cannot be used again, since the Challenge differs.
TEST_F(VerbsHandshake, AReplayedHelloIsRefused) {
  add_sealed(3);
  std::vector<std::byte> hello;
  change_first(crypto::kGuardedHelloSize, [&hello](std::vector<std::byte>& bytes) {
    hello = bytes;
    return true;
  });
  connect();
  change_first(crypto::kGuardedHelloSize, [&hello](std::vector<std::byte>& bytes) {
    bytes = hello;
    return true;
  });
  node(2).send(introduce(2, 1), Channel::kControl, pattern(10, 1));
  poll();
  EXPECT_EQ(stats(1).hello_refused, 1u);
  expect_working(2, 1);
}

// A peer that has only proved that it knows the secret keeps no one from connecting.
TEST_F(VerbsHandshake, AcceptorWithoutConfirmConnectsItself) {
  add_sealed(2);
  const PeerId back = introduce(1, 0);
  change_first(crypto::kGuardedAckSize, drop);
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  poll(20);
  node(1).send(back, Channel::kControl, pattern(10, 2));
  poll(100);
  EXPECT_TRUE(node(0).frames.empty());
  poll(static_cast<int>(world.options.liveness_limit / 2 / kMilli) + 100);
  EXPECT_EQ(stats(1).hello_timeouts, 1u);
  EXPECT_EQ(node(0).frames.size(), 1u);
  EXPECT_EQ(node(1).frames.size(), 1u);
  EXPECT_TRUE(node(0).downs.empty());
  EXPECT_TRUE(node(1).downs.empty());
}

TEST_F(VerbsHandshake, PeerThatEndsBeforeItsConfirmIsNotWaitedFor) {
  add_sealed(2);
  const PeerId back = introduce(1, 0);
  change_first(crypto::kGuardedAckSize, drop);
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  poll(20);
  node(1).send(back, Channel::kControl, pattern(10, 2));
  node(0).transport.reset();
  poll(static_cast<int>(world.options.liveness_limit / kMilli) + 500);
  EXPECT_THAT(down(1), HasSubstr("no connection to peer 127.0.0.1"));
}

TEST_F(VerbsHandshake, OneOfTwoCrossingAttemptsIsUsed) {
  for (int lead = 0; lead < 12; lead++) {
    add_sealed(2);
    const size_t a = nodes.size() - 2, b = nodes.size() - 1;
    node(a).send(introduce(a, b), Channel::kControl, pattern(10, 1));
    for (int i = 0; i < lead; i++) {
      const size_t one = i % 2 == 0 ? a : b;
      node(one).st().poll(node(one), now += kMilli);
    }
    node(b).send(introduce(b, a), Channel::kControl, pattern(10, 2));
    poll(50);
    EXPECT_EQ(node(a).frames.size(), 1u) << lead;
    EXPECT_EQ(node(b).frames.size(), 1u) << lead;
    EXPECT_EQ(stats(a).connections_opened + stats(b).connections_opened, 2u) << lead;
    EXPECT_EQ(stats(a).connect_retries + stats(b).connect_retries, 0u) << lead;
    EXPECT_TRUE(node(a).downs.empty() && node(b).downs.empty()) << lead;
  }
}

TEST_F(VerbsHandshake, LowerUidWinsIfHellosCross) {
  add_sealed(2);
  std::vector<std::pair<uint32_t, std::vector<std::byte>>> held;
  fake().on_message = [&held](std::vector<std::byte>& bytes, uint32_t from) {
    if (bytes.size() != crypto::kGuardedHelloSize) return true;
    held.emplace_back(from, bytes);
    return false;
  };
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  node(1).send(introduce(1, 0), Channel::kControl, pattern(10, 2));
  poll(10);
  ASSERT_EQ(held.size(), 2u);
  fake().on_message = nullptr;
  for (const auto& [from, bytes] : held) fake().inject_from(from, bytes);
  poll(5);
  EXPECT_EQ(node(0).frames.size(), 1u);
  EXPECT_EQ(node(1).frames.size(), 1u);
  EXPECT_EQ(stats(0).connect_retries + stats(1).connect_retries, 0u);
}

TEST_F(VerbsHandshake, PeerExpectedLaterIsToldToRetry) {
  add_sealed(3);
  const uint64_t first[] = {node(1).st().address(false).uid};
  node(0).st().expect(first);
  node(2).send(introduce(2, 0), Channel::kControl, pattern(10, 2));
  poll(3000);  // longer than refusals are tolerated
  EXPECT_GT(stats(2).connect_retries, 10u);
  EXPECT_EQ(stats(0).hello_refused, 1u) << "told once";
  EXPECT_EQ(node(0).refusals.size(), 1u);
  EXPECT_TRUE(node(0).frames.empty());
  EXPECT_TRUE(node(2).downs.empty());
  const uint64_t second[] = {node(2).st().address(false).uid};
  const auto ids = node(0).st().expect(second);
  poll(400);
  ASSERT_EQ(node(0).frames.size(), 1u);
  EXPECT_EQ(node(0).frames[0].peer, ids[0]);
  // Its Hello contains the address at which it can be reached.
  node(0).send(ids[0], Channel::kControl, pattern(10, 3));
  poll();
  EXPECT_EQ(node(2).frames.size(), 1u);
}

TEST_F(VerbsHandshake, AnEndpointThatClosesOrHasEndedWithAPeerTakesNoRequest) {
  add_sealed(3);
  connect();
  (void)node(1).st().close_peers(now);
  node(2).send(introduce(2, 1), Channel::kControl, pattern(10, 1));
  poll();
  EXPECT_THAT(down(2), HasSubstr("is not the expected process"));
  // Node 0 has dropped node 1, whose next attempt has the same uid.
  ASSERT_EQ(node(0).downs.size(), 1u);
  verbs::Hello hello;
  hello.source = node(1).st().address(false).uid;
  hello.target = node(0).st().address(false).uid;
  RawConnector raw(fake(), node(0).st().address(false).port);
  raw.ask(encode(hello, crypto::kGuardedStreamVersion));
  poll(3);
  const auto [event, data] = raw.answer();
  EXPECT_EQ(event, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(verbs::decode_refusal(data), verbs::Refusal::kStranger);
  EXPECT_EQ(stats(0).hello_refused, 1u);
}

TEST_F(VerbsHandshake, WithoutMemoryAConnectionIsNotAcceptedAndTriedAgain) {
  add_sealed(2);
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  for (int i = 0; i < 3; i++) node(0).st().poll(node(0), now += kMilli);
  fake().registration_error = ENOMEM;
  node(1).st().poll(node(1), now);
  fake().registration_error = 0;
  poll(60);
  EXPECT_EQ(node(1).frames.size(), 1u);
  EXPECT_GT(stats(0).connect_retries, 0u);
}

TEST_F(VerbsHandshake, ADeviceThatGoesTakesHalfOpenConnectionsWithIt) {
  add_sealed(2);
  change_first(crypto::kGuardedHelloSize, drop);
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  poll(10);
  fake().device_removal();
  poll(10);
  EXPECT_EQ(node(0).downs.size(), 1u);
  EXPECT_EQ(fake().connection_numbers().size(), 0u);
}

}  // namespace
}  // namespace mcast::testing
