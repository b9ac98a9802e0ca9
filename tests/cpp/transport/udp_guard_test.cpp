// The contract's suite over guarded endpoints, in both modes and striped, with keys that a few
// records use up; and peers that connect to a guarded endpoint without the right keys.
#include <fcntl.h>
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

// An attacker on the path of the one connection that reaches it, which it continues to `listener`.
// It lets the handshake pass. Then `attack` gets every record of the connector, and may forward it
// by pass() or reflect it by turn_round().
class Relay {
 public:
  using Attack = std::function<void(Relay&, size_t number, Buffer record)>;

  Relay(Fd listener, Fd onward, Attack attack)
      : listener_(std::move(listener)), onward_(std::move(onward)), attack_(std::move(attack)) {
    (void)::fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  }
  void pass(ConstBytes bytes) const { say(onward_, bytes); }
  void turn_round(ConstBytes bytes) const { say(back_, bytes); }
  void finish() const { (void)::shutdown(onward_.get(), SHUT_WR); }

  void step() {
    if (!back_.valid()) back_ = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!back_.valid()) return;
    Buffer answer;
    const bool open = take(onward_, answer);
    say(back_, answer);
    if (!open || !take(back_, heard_)) end();
    const size_t before = std::min(handshake_, heard_.size());
    cut(before, [&](ConstBytes bytes) { pass(bytes); });
    handshake_ -= before;
    while (heard_.size() >= kFramePrefix) {
      const size_t size = kFramePrefix + decode_prefix(heard_.data());
      if (heard_.size() < size) return;
      cut(size, [&](ConstBytes record) { attack_(*this, records_++, to_buffer(record)); });
    }
  }
  // Where the connection onwards comes from.
  Source source() const { return Source{local_endpoint(onward_.get())}; }

 private:
  static void say(const Fd& to, ConstBytes bytes) {
    if (!bytes.empty()) (void)::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Returns false if the other end is gone.
  static bool take(const Fd& from, Buffer& into) {
    std::array<std::byte, 4096> bytes;
    const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) into.insert(into.end(), bytes.begin(), bytes.begin() + got);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
  }
  template <typename Use>
  void cut(size_t size, const Use& use) {
    use(ConstBytes(heard_).first(size));
    heard_.erase(heard_.begin(), heard_.begin() + static_cast<ptrdiff_t>(size));
  }
  void end() const {
    (void)::shutdown(back_.get(), SHUT_RDWR);
    (void)::shutdown(onward_.get(), SHUT_RDWR);
  }

  Fd listener_, onward_, back_;
  const Attack attack_;
  size_t handshake_ = crypto::kGuardedHelloSize + crypto::kConfirmSize;
  Buffer heard_;
  size_t records_ = 0;
};

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
  // Polls only this node, for this long.
  void poll_only(size_t i, Nanos time) {
    for (const Nanos end = world_.now() + time; world_.now() < end;) {
      node(i).st().poll(node(i), world_.now());
      world_.shift += 50 * kMilli;
    }
  }
  // Node 1 sends ten frames to node 0 through this attack, and `arrived` of them arrive. `victim`
  // loses the other node for the given reason, and has counted the relay's data under `cause`;
  // kCount: nothing was counted.
  void expect_end(const Relay::Attack& attack, size_t arrived, size_t victim, Cause cause,
                  const std::string& why) {
    nodes_.clear();
    make_guarded();
    make_guarded();
    StreamAddress here = node(0).st().address(true);
    Fd onward = raw_connect(here);
    Fd listener = raw_listen(here);
    const uint16_t port = here.port;
    Relay relay(std::move(listener), std::move(onward), attack);
    const PeerId peer = node(1).st().add_peer(here);
    introduce(0, 1);
    for (uint64_t i = 0; i < 10; i++) node(1).send(peer, Channel::kControl, pattern(100, i));
    ASSERT_TRUE(pump([&] {
      relay.step();
      return !node(0).downs.empty() && !node(1).downs.empty();
    }));
    ASSERT_EQ(node(0).frames.size(), arrived);
    for (size_t i = 0; i < arrived; i++) EXPECT_EQ(node(0).frames[i].data, pattern(100, i));
    EXPECT_THAT(node(victim).downs[0].why.message(), ::testing::HasSubstr(why));
    EXPECT_TRUE(node(1 - victim).refusals.empty());
    ASSERT_EQ(node(victim).refusals.size(), cause == Cause::kCount ? 0u : 1u);
    if (cause == Cause::kCount) return;
    const auto& [counted, from] = node(victim).refusals[0];
    EXPECT_STREQ(cause_name(counted), cause_name(cause));
    const Source source =
        victim == 0 ? relay.source() : Source{{IpAddress::v4(INADDR_LOOPBACK), port}};
    EXPECT_EQ(from.text(), source.text());
    EXPECT_EQ(stats(victim).hello_refused, 0u);
  }
  Buffer hear(const Fd& fd, size_t size) {
    Buffer bytes(size);
    EXPECT_TRUE(pump([&] {
      return ::recv(fd.get(), bytes.data(), size, MSG_DONTWAIT) == static_cast<ssize_t>(size);
    }));
    return bytes;
  }
  // Uses a connection of its own, so that the others do not matter.
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

// An unguarded endpoint waits as long.
TEST_F(GuardedStream, PeerStoppedBeforeItsChallengeIsWaitedFor) {
  make_guarded();
  make_guarded();
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  poll_only(0, 2 * HalfOpen::kPatience);
  EXPECT_TRUE(node(0).downs.empty());
  EXPECT_TRUE(pump([&] { return !node(1).frames.empty(); }));
  expect_working(1, 0);
}

// Its place is released, since strangers could occupy it forever, and it connects again.
TEST_F(GuardedStream, PeerStoppedInItsHandshakeRetries) {
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

// A process with the secret that claims to be another endpoint does not have that endpoint's
// private key.
TEST_F(GuardedStream, TheKeyOfTheRecordIsTheOnlyOne) {
  make_guarded();
  make_guarded();
  StreamAddress wrong = node(0).st().address(true);
  wrong.key = some_identity(crypto::Mode::kSealed)->pair.public_key();
  node(1).send(node(1).st().add_peer(wrong), Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return !node(1).downs.empty(); }));
  EXPECT_THAT(node(1).downs[0].why.message(), ::testing::HasSubstr("its proof is wrong"));
}

// Attack 7, active: an attacker with the secret needs the private key too. If two processes claim
// one identity, the second is refused and counted with its source, and named if its key is in the
// records.
TEST_F(GuardedStream, TwoProcessesThatClaimToBeOneAreToldApart) {
  make_guarded();
  make_guarded();
  introduce(0, 1);
  expect_working(1, 0);
  const auto impostor = some_identity(crypto::Mode::kSealed, 1);
  const Fd fd = raw_connect(node(0).st().address(true));
  const Buffer challenge = hear(fd, crypto::kChallengeSize);
  guarded::Connector connector(*impostor, node(0).st().address(true),
                               encode(hello_to(0, node(1).st().address(true).uid)));
  crypto::HelloBytes hello;
  ASSERT_TRUE(
      connector.on_challenge(ConstBytes(challenge).first<crypto::kChallengeSize>(), hello).ok());
  EXPECT_TRUE(raw_send(fd, hello));
  EXPECT_TRUE(closed(fd));
  ASSERT_EQ(node(0).refusals.size(), 1u);
  EXPECT_EQ(node(0).refusals[0].first, Cause::hello_refused);
  EXPECT_EQ(node(0).refusals[0].second.address, IpAddress::v4(INADDR_LOOPBACK));
  expect_working(1, 0);
  StreamAddress other = node(0).st().address(true);
  other.key = impostor->pair.public_key();
  node(1).st().add_peer(other);
  ASSERT_TRUE(pump([&] { return !node(1).downs.empty(); }));
  EXPECT_THAT(node(1).downs[0].why.message(),
              ::testing::HasSubstr("two processes claim to be peer 127.0.0.1"));
}

// Attack 8, and changed records: each ends the connection on both sides with an error that names
// the peer. A record that does not open, or is not valid, is counted under its cause and source.
TEST_F(GuardedStream, AChangedRecordIsCountedWithItsSource) {
  const auto at = [](size_t place, const Relay::Attack& attack) {
    return [=](Relay& relay, size_t number, const Buffer& record) {
      if (number < place) return relay.pass(record);
      if (number == place) attack(relay, number, record);
    };
  };
  const std::string forged = "sent a record that cannot be verified";
  for (const size_t byte : {kFramePrefix, size_t{50}, size_t{119}}) {
    expect_end(at(3,
                  [byte](Relay& relay, size_t, Buffer record) {
                    record.at(byte) ^= std::byte{1};
                    relay.pass(record);
                  }),
               3, 0, Cause::forged, forged);
  }
  const auto cut = [](Relay& relay, size_t, Buffer record) {
    record.pop_back();
    const auto length = encode_prefix(static_cast<uint32_t>(record.size() - kFramePrefix));
    std::copy(length.begin(), length.end(), record.begin());
    relay.pass(record);
  };
  expect_end(at(2, cut), 2, 0, Cause::forged, forged);
  const auto again = [](Relay& relay, size_t, const Buffer& record) {
    relay.pass(record);
    relay.pass(record);
  };
  expect_end(at(4, again), 5, 0, Cause::forged, forged);
  const auto back = [](Relay& relay, size_t, const Buffer& record) { relay.turn_round(record); };
  expect_end(at(4, back), 4, 1, Cause::forged, forged);
  for (const uint32_t length : {0u, uint32_t{crypto::kTagSize - 1}, uint32_t{2 * kMaxBulkFrame}}) {
    const auto wrong = [length](Relay& relay, size_t, const Buffer&) {
      relay.pass(encode_prefix(length));
    };
    expect_end(at(1, wrong), 1, 0, Cause::malformed, "sent a frame of " + std::to_string(length));
  }
  const auto goodbye = [](Relay& relay, size_t, const Buffer&) {
    relay.pass(encode_prefix(kGoodbyeLength));
  };
  // Unsealed, it is an invalid length.
  expect_end(at(1, goodbye), 1, 0, Cause::malformed, "sent a frame of 2147483647 bytes");
}

// There is nothing to count: an attacker who cuts or blocks a connection only denies service.
TEST_F(GuardedStream, AnEndThatNobodySaidIsALostPeer) {
  const auto cut_at = [](size_t bytes) {
    return [bytes](Relay& relay, size_t number, const Buffer& record) {
      if (number < 2) return relay.pass(record);
      if (number > 2) return;
      relay.pass(ConstBytes(record).first(bytes));
      relay.finish();
    };
  };
  expect_end(cut_at(0), 2, 0, Cause::kCount, "closed its connection without a goodbye");
  expect_end(cut_at(30), 2, 0, Cause::kCount, "without a goodbye in the middle of a frame");
}

// Only its uid is known, so node 0 cannot connect to it if it ends before its Confirm.
TEST_F(GuardedStream, ExpectedPeerMayRetry) {
  make_guarded();
  const uint64_t uids[] = {77};
  node(0).st().expect(uids);
  const auto rank = some_identity(crypto::Mode::kSealed, 1);
  for (int i = 0; i < 3; i++) {
    const Fd fd = raw_connect(node(0).st().address(true));
    const Buffer challenge = hear(fd, crypto::kChallengeSize);
    guarded::Connector connector(*rank, node(0).st().address(true), encode(hello_to(0, 77)));
    crypto::HelloBytes hello;
    ASSERT_TRUE(
        connector.on_challenge(ConstBytes(challenge).first<crypto::kChallengeSize>(), hello).ok());
    EXPECT_TRUE(raw_send(fd, hello));
    const Buffer ack = hear(fd, crypto::kGuardedAckSize);
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

TEST_F(GuardedStream, NothingIsSentBeforeTheChallenge) {
  make_guarded();
  StreamAddress at;
  const Fd listener = raw_listen(at);
  at.uid = 99;
  const PeerId peer = node(0).st().add_peer(at);
  node(0).send(peer, Channel::kControl, pattern(1000, 1));
  const Fd taken(::accept(listener.get(), nullptr, nullptr));
  settle();
  std::byte byte;
  EXPECT_EQ(::recv(taken.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(node(0).st().queued(peer, Channel::kControl), 1000u + kFramePrefix);
}

}  // namespace
}  // namespace mcast::testing
