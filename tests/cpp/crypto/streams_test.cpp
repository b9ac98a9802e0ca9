// Handshakes and records between two ends, and an attacker in between who changes, truncates,
// duplicates, swaps and replays them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "crypto/bytes.h"
#include "crypto/handshake.h"
#include "crypto/library.h"
#include "crypto/stream_guard.h"

namespace mcast::crypto {
namespace {

constexpr uint8_t kAes = suite_bit(Suite::kAes128Gcm),
                  kChaCha = suite_bit(Suite::kChaCha20Poly1305);

Identity end_of(unsigned number, unsigned secret = 1, Mode mode = Mode::kSealed,
                uint8_t suites = kAes | kChaCha) {
  auto pair =
      KeyPair::make(array_of<32>(std::vector<std::byte>(32, static_cast<std::byte>(number))));
  EXPECT_TRUE(pair.ok());
  const Key root = root_key(std::vector<std::byte>(16, static_cast<std::byte>(secret)));
  return {mode, suites, Role::kRank, hello_key(root), mix_key(root), std::move(pair).value()};
}
HandshakeNonce nonce(unsigned n) {
  HandshakeNonce out;
  out.fill(static_cast<std::byte>(n));
  return out;
}
template <size_t N>
std::array<std::byte, N> head() {
  std::array<std::byte, N> out;
  out.fill(std::byte{0x33});
  return out;
}

// The result of a handshake and where it ended.
struct Outcome {
  std::string where = "done";
  HandshakeError error = HandshakeError::kNone;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << o.where << ": " << handshake_error_text(o.error);
}

// `change` may modify each message in transit: 0 Challenge, 1 Hello, 2 HelloAck, 3 Confirm.
using Change = std::function<void(int, Bytes)>;

struct Handshake {
  Identity acceptor_end, connector_end;
  PublicKey expected = acceptor_end.pair.public_key();
  unsigned first_nonce = 1;
  Acceptor acceptor{acceptor_end, nonce(first_nonce)};
  Connector connector{connector_end, expected};

  Outcome run(const Change& change = [](int, Bytes) {}) {
    ChallengeBytes challenge = acceptor.challenge();
    change(0, challenge);
    HelloBytes hello;
    if (const auto e = connector.hello(challenge, head<32>(), nonce(2), hello);
        e != HandshakeError::kNone) {
      return {"challenge", e};
    }
    change(1, hello);
    if (const auto e = acceptor.check_hello(hello); e != HandshakeError::kNone) return {"hello", e};
    AckBytes ack;
    if (const auto e = acceptor.answer(head<16>(), ack); e != HandshakeError::kNone) {
      return {"answer", e};
    }
    change(2, ack);
    ConfirmBytes confirm;
    if (const auto e = connector.check_ack(ack, confirm); e != HandshakeError::kNone) {
      return {"ack", e};
    }
    change(3, confirm);
    return {"done", acceptor.check_confirm(confirm)};
  }
};

class Streams : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(load_library().ok()); }
};

TEST_F(Streams, BothEndsGetTheSameFreshKeys) {
  Handshake one{end_of(1), end_of(2)};
  ASSERT_EQ(one.run(), Outcome{});
  const StreamChains a = one.acceptor.chains(), c = one.connector.chains();
  EXPECT_EQ(hex(a.seal.bytes()), hex(c.open.bytes()));
  EXPECT_EQ(hex(a.open.bytes()), hex(c.seal.bytes()));
  EXPECT_NE(hex(a.open.bytes()), hex(a.seal.bytes()));
  EXPECT_EQ(a.suite, Suite::kAes128Gcm);
  EXPECT_EQ(one.acceptor.peer_key(), one.connector_end.pair.public_key());
  Handshake again{end_of(1), end_of(2), end_of(1).pair.public_key(), 9};
  ASSERT_EQ(again.run(), Outcome{});
  EXPECT_NE(hex(again.acceptor.chains().seal.bytes()), hex(a.seal.bytes()));
}

TEST_F(Streams, EveryFlippedBitIsNoticed) {
  const size_t sizes[] = {kChallengeSize, kGuardedHelloSize, kGuardedAckSize, kConfirmSize};
  for (int message = 0; message < 4; message++) {
    for (size_t bit = 0; bit < sizes[message] * 8; bit += 1) {
      Handshake h{end_of(1), end_of(2)};
      const Outcome o = h.run([&](int which, Bytes bytes) {
        if (which == message) bytes[bit / 8] ^= std::byte{1} << bit % 8;
      });
      EXPECT_NE(o.error, HandshakeError::kNone) << message << " bit " << bit << " " << o.where;
    }
  }
}

TEST_F(Streams, AReplayedHelloIsWorthless) {
  Handshake first{end_of(1), end_of(2)};
  std::vector<std::byte> hello;
  ASSERT_EQ(first.run([&](int which, Bytes b) {
    if (which == 1) hello.assign(b.begin(), b.end());
  }),
            Outcome{});
  const Identity self = end_of(1);
  Acceptor later(self, nonce(5));  // its Challenge differs
  EXPECT_EQ(later.check_hello(array_of<kGuardedHelloSize>(hello)), HandshakeError::kMac);
}

TEST_F(Streams, AnotherSecretModeOrSuiteIsRefusedByName) {
  EXPECT_EQ((Handshake{end_of(1, 1), end_of(2, 2)}).run(),
            (Outcome{"hello", HandshakeError::kMac}));
  EXPECT_EQ((Handshake{end_of(1), end_of(2, 1, Mode::kAuth)}).run(),
            (Outcome{"challenge", HandshakeError::kMode}));
  EXPECT_EQ(
      (Handshake{end_of(1, 1, Mode::kSealed, kAes), end_of(2, 1, Mode::kSealed, kChaCha)}).run(),
      (Outcome{"challenge", HandshakeError::kSuite}));
  EXPECT_EQ((Handshake{end_of(1), end_of(2)}).run([](int which, Bytes b) {
    if (which == 0) b[0] = std::byte{'X'};
  }),
            (Outcome{"challenge", HandshakeError::kNotGuarded}));
}

TEST_F(Streams, OnlyTheOwnerOfThePrivateKeyIsThePeer) {
  Handshake h{end_of(1), end_of(2), end_of(3).pair.public_key()};
  EXPECT_EQ(h.run(), (Outcome{"ack", HandshakeError::kMac}));
}

// Keys that ranks and aggregators share are derived from the ranks' secret; aggregators have no
// other keys.
Identity with_roles(Identity end, unsigned secret = 1) {
  const Key root = root_key(std::vector<std::byte>(16, static_cast<std::byte>(secret)));
  const Key theirs =
      root_key(role_key(root, static_cast<uint8_t>(Role::kAggregator), kAggregatorName).bytes());
  end.role_hello = hello_key(theirs);
  end.role_mix = mix_key(theirs);
  return end;
}
Identity aggregator(unsigned number, unsigned secret = 1) {
  Identity end = with_roles(end_of(number), secret);
  end.role = Role::kAggregator;
  end.hello = Key();
  end.mix = Key();
  return end;
}
class Roles : public Streams {
 protected:
  // The connector expects the acceptor to have the role `other`.
  Outcome meet(const Identity& acceptor, const Identity& connector, Role other) {
    Acceptor a(acceptor, nonce(1));
    Connector c(connector, acceptor.pair.public_key(), other);
    HelloBytes hello;
    EXPECT_EQ(c.hello(a.challenge(), head<32>(), nonce(2), hello), HandshakeError::kNone);
    if (const auto e = a.check_hello(hello); e != HandshakeError::kNone) return {"hello", e};
    role_ = a.peer_role();
    AckBytes ack;
    EXPECT_EQ(a.answer(head<16>(), ack), HandshakeError::kNone);
    ConfirmBytes confirm;
    if (const auto e = c.check_ack(ack, confirm); e != HandshakeError::kNone) return {"ack", e};
    return {"done", a.check_confirm(confirm)};
  }
  const Outcome refused_{"hello", HandshakeError::kMac};
  const Identity rank_ = with_roles(end_of(1)), other_rank_ = with_roles(end_of(2));
  const Identity station_ = aggregator(3), leaf_ = aggregator(4);
  Role role_ = Role::kRank;  // of the last connector that was accepted
};

TEST_F(Roles, RanksAndAggregatorsConnectInTheirRoles) {
  EXPECT_EQ(meet(rank_, other_rank_, Role::kRank), Outcome{});
  EXPECT_EQ(meet(station_, rank_, Role::kAggregator), Outcome{});
  EXPECT_EQ(role_, Role::kRank);
  EXPECT_EQ(meet(rank_, station_, Role::kRank), Outcome{});
  EXPECT_EQ(role_, Role::kAggregator);
  EXPECT_EQ(meet(station_, leaf_, Role::kAggregator), Outcome{});
}

TEST_F(Roles, AnAggregatorCannotPoseAsARank) {
  Identity liar = aggregator(5);
  liar.role = Role::kRank;  // with the keys that it has in every place
  liar.hello = liar.role_hello.clone();
  liar.mix = liar.role_mix.clone();
  EXPECT_EQ(meet(rank_, liar, Role::kRank), refused_);
  EXPECT_EQ(meet(liar, rank_, Role::kRank), refused_) << "nor be taken for one";
}

TEST_F(Roles, TheRoleOfAnotherSecretIsRefused) {
  EXPECT_EQ(meet(aggregator(3, 2), rank_, Role::kAggregator), refused_);
  EXPECT_EQ(meet(rank_, aggregator(3, 2), Role::kRank), refused_);
}

// Attack: a Hello with a key whose shared secrets are all zero.
TEST_F(Streams, AKeyOfSmallOrderIsRefused) {
  const Identity self = end_of(1), other = end_of(2);
  Acceptor acceptor(self, nonce(1));
  Connector connector(other, self.pair.public_key());
  HelloBytes hello;
  ASSERT_EQ(connector.hello(acceptor.challenge(), head<32>(), nonce(2), hello),
            HandshakeError::kNone);
  std::fill(hello.begin() + 48, hello.begin() + 80, std::byte{0});
  const Digest h1 = sha256({acceptor.challenge(), ConstBytes(hello).first(80)});
  const Digest mac = hmac_sha256(self.hello.bytes(), {h1});
  std::copy_n(mac.begin(), 16, hello.begin() + 80);
  ASSERT_EQ(acceptor.check_hello(hello), HandshakeError::kNone);
  AckBytes ack;
  EXPECT_EQ(acceptor.answer(head<16>(), ack), HandshakeError::kKey);
}

struct Pipe {
  RecordSealer sealer;
  RecordOpener opener;
  static Pipe make(Mode mode, const EpochLimits& limits = {}, Suite suite = Suite::kAes128Gcm) {
    const Key chain = root_key(std::vector<std::byte>(32, std::byte{8}));
    auto s = RecordSealer::make(chain.clone(), suite, mode, limits);
    auto o = RecordOpener::make(chain.clone(), suite, mode, limits);
    EXPECT_TRUE(s.ok() && o.ok());
    return {std::move(s).value(), std::move(o).value()};
  }
  std::vector<std::byte> seal(std::string_view body, std::optional<uint32_t> number = {}) {
    std::vector<std::byte> out(record_size(body.size(), number.has_value()));
    const ConstBytes parts[] = {bytes_of(body.substr(0, body.size() / 2)), ConstBytes{},
                                bytes_of(body.substr(body.size() / 2))};
    EXPECT_TRUE(sealer.seal(number, parts, out.data()));
    return out;
  }
  std::optional<std::string> open(ConstBytes record, bool striped = false) {
    std::array<std::byte, 300> scratch;
    const auto body = opener.open(striped, record, scratch);
    if (!body) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(body->data()), body->size());
  }
};

class Records : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override { ASSERT_TRUE(load_library().ok()); }
};
INSTANTIATE_TEST_SUITE_P(Modes, Records, ::testing::Values(Mode::kAuth, Mode::kSealed),
                         [](const auto& p) { return mode_name(p.param); });

TEST_P(Records, BringFramesInOrder) {
  EpochLimits tiny;
  tiny.packets = 3;
  Pipe pipe = Pipe::make(GetParam(), tiny);
  for (int i = 0; i < 20; i++) {
    const std::string body = "frame " + std::to_string(i);
    EXPECT_EQ(pipe.open(pipe.seal(body)), body);
  }
  EXPECT_EQ(pipe.sealer.epoch(), 6u);
  EXPECT_EQ(pipe.opener.epoch(), 6u);
  EXPECT_EQ(pipe.open(pipe.seal("x", 77), true), "x");
  EXPECT_EQ(pipe.open(pipe.seal("")), "") << "the goodbye";
}

TEST_P(Records, EveryFlippedBitEndsTheConnection) {
  Pipe whole = Pipe::make(GetParam());
  const std::vector<std::byte> good = whole.seal("a frame", 5);
  for (size_t bit = 0; bit < good.size() * 8; bit++) {
    Pipe pipe = Pipe::make(GetParam());
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(pipe.open(bad, true)) << bit;
    EXPECT_FALSE(pipe.open(good, true)) << "nothing after it is believed";
  }
}

// Attack 8: records that are replayed, omitted, swapped or truncated, and a goodbye that the peer
// has not sent.
TEST_P(Records, AreTakenOnceInOrderAndWhole) {
  const auto after =
      [&](const std::function<void(Pipe&, std::vector<std::vector<std::byte>>&)>& f) {
        Pipe pipe = Pipe::make(GetParam());
        std::vector<std::vector<std::byte>> records;
        for (const char* body : {"one", "two", "three"}) records.push_back(pipe.seal(body));
        f(pipe, records);
      };
  after([](Pipe& p, auto& r) {
    EXPECT_TRUE(p.open(r[0]));
    EXPECT_FALSE(p.open(r[0])) << "replayed";
  });
  after([](Pipe& p, auto& r) {
    EXPECT_TRUE(p.open(r[0]));
    EXPECT_FALSE(p.open(r[2])) << "one is missing";
  });
  after([](Pipe& p, auto& r) { EXPECT_FALSE(p.open(r[1])) << "swapped"; });
  after([](Pipe& p, auto& r) {
    EXPECT_FALSE(p.open(ConstBytes(r[0]).first(r[0].size() - 1))) << "cut";
  });
  after([](Pipe& p, auto&) {
    std::vector<std::byte> goodbye(record_size(0, false));
    goodbye[0] = std::byte{16};
    EXPECT_FALSE(p.open(goodbye)) << "forged goodbye";
  });
  after([](Pipe& p, auto& r) { EXPECT_FALSE(p.open(r[0], true)) << "as if it had a number"; });
}

TEST_P(Records, EpochsEndAfterAnHour) {
  EpochLimits few;
  few.packets = 4;
  Pipe pipe = Pipe::make(GetParam(), few);
  pipe.sealer.age(100 * kSecond);
  EXPECT_EQ(pipe.open(pipe.seal("1")), "1");
  pipe.sealer.age(3700 * kSecond);
  EXPECT_EQ(pipe.open(pipe.seal("2", 9), true), "2");
  EXPECT_EQ(pipe.sealer.epoch(), 1u);
  EXPECT_EQ(pipe.opener.epoch(), 1u);
  for (int i = 0; i < 8; i++) EXPECT_EQ(pipe.open(pipe.seal("more")), "more");
  EXPECT_EQ(pipe.sealer.epoch(), 3u) << "by count, from there";
  EXPECT_EQ(pipe.opener.epoch(), 3u);
  // Both limits at once end only one epoch.
  for (int i = 0; i < 3; i++) EXPECT_EQ(pipe.open(pipe.seal("more")), "more");
  pipe.sealer.age(9000 * kSecond);
  EXPECT_EQ(pipe.open(pipe.seal("last")), "last");
  EXPECT_EQ(pipe.sealer.epoch(), 4u);
  EXPECT_EQ(pipe.opener.epoch(), 4u);
  // An epoch bit that is set in a record without one ends the connection.
  std::vector<std::byte> record = pipe.seal("x");
  record[3] |= std::byte{0x80};
  EXPECT_FALSE(pipe.open(record));
}

TEST_P(Records, EndsOfKeys) {
  EpochLimits tiny;
  tiny.packets = 1;
  tiny.epochs = 2;
  Pipe pipe = Pipe::make(GetParam(), tiny);
  EXPECT_TRUE(pipe.open(pipe.seal("1")));
  EXPECT_TRUE(pipe.open(pipe.seal("2")));
  std::array<std::byte, 100> out;
  EXPECT_FALSE(pipe.sealer.seal({}, {}, out.data()));
}

TEST(RecordLengths, AreBounded) {
  EXPECT_TRUE(record_length_allowed(16, 100, false));
  EXPECT_TRUE(record_length_allowed(116, 100, false));
  EXPECT_FALSE(record_length_allowed(15, 100, false));
  EXPECT_FALSE(record_length_allowed(117, 100, false));
  EXPECT_FALSE(record_length_allowed(16, 100, true));
  EXPECT_TRUE(record_length_allowed(120, 100, true));
  EXPECT_FALSE(record_length_allowed(0xffffffff, 100, false)) << "the goodbye in clear";
  EXPECT_FALSE(record_length_allowed(record_length(0xffffffff), 100, false));
  EXPECT_EQ(record_length(kNewEpoch | 116), 116u);
}

}  // namespace
}  // namespace mcast::crypto
