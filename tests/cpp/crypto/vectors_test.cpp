// Compares every key and message with a second implementation
// (tests/data/make_security_vectors.py).
#include "crypto/vectors.h"

#include <gtest/gtest.h>

#include <set>

#include "crypto/block_digest.h"
#include "crypto/datagram_guard.h"
#include "crypto/handshake.h"
#include "crypto/library.h"
#include "crypto/secret.h"
#include "crypto/stream_guard.h"
#include "support/admit.h"

namespace mcast::crypto {
namespace {

constexpr Suite kSuites[] = {Suite::kAes128Gcm, Suite::kAes256Gcm, Suite::kChaCha20Poly1305};
constexpr Mode kModes[] = {Mode::kAuth, Mode::kSealed};

class SecondImplementation : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(load_library().ok()); }
  static std::string how(Mode mode, Suite suite) {
    return std::string(mode_name(mode)) + " " + suite_name(suite);
  }
  const Vectors v_;
};

TEST_F(SecondImplementation, KeysOfTheSecret) {
  const Key root = root_key(v_.bytes("secret"));
  EXPECT_EQ(hex(root.bytes()), v_.hex("root"));
  EXPECT_EQ(hex(record_key(root).bytes()), v_.hex("record_key"));
  EXPECT_EQ(hex(secret_check(record_key(root), bytes_of("a nonce"))), v_.hex("secret_check"));
  EXPECT_EQ(hex(hello_key(root).bytes()), v_.hex("hello_key"));
  EXPECT_EQ(hex(mix_key(root).bytes()), v_.hex("mix_key"));
  EXPECT_EQ(hex(job_key(jobs_key(root), "run|node0|29500").bytes()), v_.hex("job_key"));
  EXPECT_EQ(hex(role_key(root, 1, "rack 7").bytes()), v_.hex("role_key"));
  EXPECT_EQ(hex(record_mac(record_key(root), {"job/3", "rank/1", "default", 1, 4}, "a record")),
            v_.hex("record_mac"));
}

TEST_F(SecondImplementation, KeysOfAGroup) {
  const std::string records[] = {"first", "", "a third record"};
  const Digest t = transcript(3, records);
  EXPECT_EQ(hex(t), v_.hex("transcript"));
  EXPECT_EQ(hex(agreed_key(v_.key("record_key"), t).bytes()), v_.hex("agreed_key"));
  const auto a = KeyPair::make(v_.array<32>("private_a"));
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(hex(a->public_key()), v_.hex("public_a"));
  const auto shared = a->shared(v_.array<32>("public_b"));
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ(hex(shared->bytes()), v_.hex("shared"));
  const Key mix = v_.key("mix_key");
  const Key secret = group_secret(v_.array<32>("group_random"), mix);
  EXPECT_EQ(hex(secret.bytes()), v_.hex("group_secret"));
  const Key kek = wrap_key(t, *shared, mix, 2);
  EXPECT_EQ(hex(kek.bytes()), v_.hex("wrap_key"));
  const Wrapped wrapped = wrap(kek, secret);
  EXPECT_EQ(hex(wrapped), v_.hex("wrapped"));
  const auto back = unwrap(kek, wrapped);
  ASSERT_TRUE(back);
  EXPECT_EQ(hex(back->bytes()), v_.hex("group_secret"));
  EXPECT_FALSE(unwrap(wrap_key(t, *shared, mix, 3), wrapped)) << "of another rank";
  const std::string others[] = {"first", "x", "a third record"};
  EXPECT_FALSE(unwrap(wrap_key(transcript(3, others), *shared, mix, 2), wrapped));
  EXPECT_EQ(hex(group_root(t, secret).bytes()), v_.hex("group_root"));
  EXPECT_EQ(hex(pair_key(*shared, mix).bytes()), v_.hex("pair_key"));
}

TEST_F(SecondImplementation, DatagramsAreTheSameByteForByte) {
  const Key root = v_.key("group_root");
  EXPECT_EQ(hex(filter_key(root, 1)), v_.hex("filter_key"));
  wire::DatagramHeader header{
      wire::DatagramType::kData, 1, true, true, 0x1122334455667788, 77, 0xdeadbeef, 12, 5, 0};
  const std::vector<std::byte> payload = v_.bytes("payload");
  for (const Mode mode : kModes) {
    for (const Suite suite : kSuites) {
      const Guarding guarding{mode, suite, 1};
      EXPECT_EQ(hex(first_chain(root, mode, suite, 1, 5).bytes()),
                v_.hex("chain " + how(mode, suite)));
      auto seal = SealKey::make(root, guarding, 5, {2, 1000, 9});
      auto open =
          DatagramGuard::make(root, {guarding, 0, 6, 100, {}, {}}, std::make_shared<OpenBudget>());
      ASSERT_TRUE(seal.ok() && open.ok());
      for (int i = 0; i < 4; i++) {  // two in each epoch
        std::vector<std::byte> out(payload.size() + wire::kGuardedExtra + wire::kDatagramHeader);
        ASSERT_EQ(seal->seal(out, header, payload), out.size());
        EXPECT_EQ(hex(out), v_.hex("datagram " + std::to_string(i / 2) + " " +
                                   std::to_string(i % 2) + " " + how(mode, suite)));
        wire::GuardedHeader read;
        ASSERT_EQ(test::admit(**open, out, read, 0), DatagramVerdict::kVerified);
        EXPECT_EQ(read.inner, header);
        ConstBytes text;
        ASSERT_EQ((*open)->open(read, out, text, 0), DatagramVerdict::kVerified);
        EXPECT_EQ(hex(text), v_.hex("payload"));
      }
      EXPECT_EQ((*open)->epoch_of(5), 1u);
    }
  }
}

class SecondStreams : public SecondImplementation {
 protected:
  Identity identity(const std::string& end, Mode mode, Suite suite) const {
    auto pair = KeyPair::make(v_.array<32>("private_" + end));
    EXPECT_TRUE(pair.ok());
    return {mode,
            suite_bit(suite),
            Role::kRank,
            v_.key("hello_key"),
            v_.key("mix_key"),
            std::move(pair).value()};
  }
};

TEST_F(SecondImplementation, DigestsOfBlocksInAnyOrder) {
  const std::vector<std::byte> payload = v_.bytes("payload");
  const BlockName name{0x1122334455667788, 1, 77, 0xdeadbeef, 5};
  BlockDigest mixed(97, 32);
  for (const size_t leaf : {2, 0, 3}) {
    mixed.add(leaf, payload);
    EXPECT_FALSE(mixed.complete());
  }
  mixed.add(1, payload);
  ASSERT_TRUE(mixed.complete());
  EXPECT_EQ(hex(mixed.of(name)), v_.hex("block 97 32"));
  BlockDigest ordered(97, 32);
  for (const uint64_t end : {1, 32, 33, 95, 96}) {
    ordered.extend(end, payload);
    EXPECT_FALSE(ordered.complete()) << end;
  }
  ordered.extend(97, payload);
  ASSERT_TRUE(ordered.complete());
  EXPECT_EQ(hex(ordered.of(name)), v_.hex("block 97 32"));
  BlockDigest one(64, 64);
  one.extend(64, payload);
  EXPECT_EQ(hex(one.of(name)), v_.hex("block 64 64"));
}

// The digest depends on every part of the name, on the length and on the place.
TEST_F(SecondImplementation, ADigestFitsNoOtherBlock) {
  const std::vector<std::byte> payload = v_.bytes("payload");
  const auto digest = [&](size_t bytes, size_t leaf, const BlockName& name) {
    BlockDigest made(bytes, leaf);
    made.extend(bytes, payload);
    return hex(made.of(name));
  };
  const BlockName name{0x1122334455667788, 1, 77, 0xdeadbeef, 5};
  std::set<std::string> all{digest(96, 32, name), digest(97, 32, name), digest(96, 48, name)};
  for (const size_t field : {0, 1, 2, 3, 4}) {
    BlockName other = name;
    other.tag += field == 0;
    other.lane += field == 1;
    other.sequence += field == 2;
    other.descriptor += field == 3;
    other.root += field == 4;
    all.insert(digest(96, 32, other));
  }
  EXPECT_EQ(all.size(), 8u);
}

TEST_F(SecondStreams, HandshakeAndRecordsAreTheSameByteForByte) {
  for (const Mode mode : kModes) {
    for (const Suite suite : kSuites) {
      const std::string name = how(mode, suite);
      const Identity a = identity("a", mode, suite), b = identity("b", mode, suite);
      const auto challenge = v_.array<kChallengeSize>("challenge " + name);
      Acceptor acceptor(a, array_of<16>(std::span(challenge).last<16>()));
      Connector connector(b, a.pair.public_key());
      EXPECT_EQ(hex(acceptor.challenge()), v_.hex("challenge " + name));
      HelloBytes hello;
      const auto expected = v_.array<kGuardedHelloSize>("hello " + name);
      const std::span<const std::byte, kGuardedHelloSize> whole(expected);
      ASSERT_EQ(connector.hello(acceptor.challenge(), whole.first<kHelloHead>(),
                                array_of<16>(whole.subspan<32, 16>()), hello),
                HandshakeError::kNone);
      EXPECT_EQ(hex(hello), v_.hex("hello " + name));
      ASSERT_EQ(acceptor.check_hello(hello), HandshakeError::kNone);
      EXPECT_EQ(acceptor.peer_key(), b.pair.public_key());
      AckBytes ack;
      const auto ack_expected = v_.array<kGuardedAckSize>("ack " + name);
      ASSERT_EQ(acceptor.answer(std::span(ack_expected).first<kAckHead>(), ack),
                HandshakeError::kNone);
      EXPECT_EQ(hex(ack), v_.hex("ack " + name));
      ConfirmBytes confirm;
      ASSERT_EQ(connector.check_ack(ack, confirm), HandshakeError::kNone);
      EXPECT_EQ(hex(confirm), v_.hex("confirm " + name));
      EXPECT_EQ(acceptor.check_confirm(confirm), HandshakeError::kNone);
      StreamChains ours = connector.chains(), theirs = acceptor.chains();
      EXPECT_EQ(hex(ours.seal.bytes()), v_.hex("c2a " + name));
      EXPECT_EQ(hex(ours.open.bytes()), v_.hex("a2c " + name));
      EXPECT_EQ(hex(theirs.open.bytes()), v_.hex("c2a " + name));
      EXPECT_EQ(hex(theirs.seal.bytes()), v_.hex("a2c " + name));

      auto sealer = RecordSealer::make(std::move(ours.seal), suite, mode);
      auto opener = RecordOpener::make(std::move(theirs.open), suite, mode);
      ASSERT_TRUE(sealer.ok() && opener.ok());
      const std::vector<std::byte> payload = v_.bytes("payload");
      const std::vector<std::byte> x(1, std::byte{'x'});
      const ConstBytes bodies[] = {payload, x, {}};
      for (size_t i = 0; i < 3; i++) {
        const bool striped = i == 1;
        std::vector<std::byte> out(record_size(bodies[i].size(), striped)), scratch(200);
        ASSERT_TRUE(sealer->seal(striped ? std::optional<uint32_t>(7) : std::nullopt,
                                 {&bodies[i], 1}, out.data()));
        EXPECT_EQ(hex(out), v_.hex("record " + std::to_string(i) + " " + name));
        const auto body = opener->open(striped, out, scratch);
        ASSERT_TRUE(body);
        EXPECT_EQ(hex(*body), hex(bodies[i]));
      }
    }
  }
}

}  // namespace
}  // namespace mcast::crypto
