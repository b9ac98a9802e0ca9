// Each message is authenticated together with all earlier ones, by h1 and h2, so none can be taken
// from another connection. The Hello is checked with the secret's key alone, which is cheap; the
// two later MACs with a key derived from X25519 of the two endpoints and both nonces, which proves
// possession of the private keys. The Challenge is not authenticated by itself: a changed one makes
// the Hello's MAC wrong.
#include "crypto/handshake.h"

#include <algorithm>

namespace mcast::crypto {
namespace {

constexpr uint32_t kChallengeMagic = 0x4353434d;  // "MCSC"
constexpr size_t kMacAt = 80, kCut = 16;

void set_version(std::byte* at) noexcept { wire::store<uint16_t>(at, kGuardedStreamVersion); }
bool has_version(const std::byte* at) noexcept {
  return wire::load<uint16_t>(at) == kGuardedStreamVersion;
}

std::array<std::byte, kCut> cut(const Digest& digest) noexcept {
  std::array<std::byte, kCut> out;
  std::copy_n(digest.begin(), kCut, out.begin());
  return out;
}

Digest first_hash(ConstBytes challenge, ConstBytes hello) noexcept {
  return sha256({challenge, hello.first(kMacAt)});
}
Digest second_hash(const Digest& h1, ConstBytes hello_mac, ConstBytes ack) noexcept {
  return sha256({h1, hello_mac, ack.first(kAckHead)});
}

ConfirmBytes confirmation(const Key& connection, const Digest& h2, ConstBytes ack) noexcept {
  return cut(hmac_sha256(confirm_key(connection).bytes(), {h2, ack}));
}

StreamChains chains_of(const Key& connection, bool acceptor, Mode mode, Suite suite) {
  Key to_acceptor = stream_chain(connection, Direction::kToAcceptor, mode, suite);
  Key to_connector = stream_chain(connection, Direction::kToConnector, mode, suite);
  if (acceptor) std::swap(to_acceptor, to_connector);
  return {std::move(to_acceptor), std::move(to_connector), suite, mode};
}

}  // namespace

const char* handshake_error_text(HandshakeError error) noexcept {
  switch (error) {
    case HandshakeError::kNone:
      return "none";
    case HandshakeError::kNotGuarded:
      return "it does not ask for a proof: is its security off?";
    case HandshakeError::kVersion:
      return "it speaks another version of the guarded protocol";
    case HandshakeError::kMode:
      return "its security setting differs from ours";
    case HandshakeError::kSuite:
      return "there is no cipher that both ends support";
    case HandshakeError::kRole:
      return "its role is unknown";
    case HandshakeError::kMac:
      return "its proof is wrong: it has another secret, or somebody has changed its messages";
    case HandshakeError::kKey:
      return "its key is not the one in its record";
    case HandshakeError::kPages:
      return "there are no pages for the keys of its connection";
  }
  return "unknown";
}

std::optional<Suite> choose_suite(uint8_t ours, uint8_t theirs) noexcept {
  for (const Suite suite : {Suite::kAes128Gcm, Suite::kAes256Gcm, Suite::kChaCha20Poly1305}) {
    if ((ours & theirs & suite_bit(suite)) != 0) return suite;
  }
  return std::nullopt;
}

Acceptor::Acceptor(const Identity& self, const HandshakeNonce& nonce) : self_(self) {
  wire::store<uint32_t>(&challenge_[0], kChallengeMagic);
  set_version(&challenge_[4]);
  wire::store<uint8_t>(&challenge_[6], static_cast<uint8_t>(self.mode));
  wire::store<uint8_t>(&challenge_[7], self.suites);
  std::copy(nonce.begin(), nonce.end(), challenge_.begin() + 8);
}

HandshakeError Acceptor::check_hello(std::span<const std::byte, kGuardedHelloSize> hello) {
  if (!has_version(&hello[4])) return HandshakeError::kVersion;
  // The role selects the key: only an endpoint with that key can claim the role.
  const auto role = wire::load<uint8_t>(&hello[30]);
  if (role > static_cast<uint8_t>(Role::kAggregator)) return HandshakeError::kRole;
  role_ = static_cast<Role>(role);
  h1_ = first_hash(challenge_, hello);
  hello_mac_ = cut(hmac_sha256(self_.hello_with(role_).bytes(), {h1_}));
  if (!same(hello_mac_, hello.subspan<kMacAt, kCut>())) return HandshakeError::kMac;
  const auto how = unpack(wire::load<uint8_t>(&hello[31]));
  if (!how || how->mode != self_.mode) return HandshakeError::kMode;
  if ((self_.suites & suite_bit(how->suite)) == 0) return HandshakeError::kSuite;
  suite_ = how->suite;
  std::copy_n(hello.begin() + 48, peer_key_.size(), peer_key_.begin());
  return HandshakeError::kNone;
}

HandshakeError Acceptor::answer(std::span<const std::byte, kAckHead> head, AckBytes& out) {
  const auto shared = self_.pair.shared(peer_key_);
  if (!shared.ok()) return HandshakeError::kKey;
  std::copy(head.begin(), head.end(), out.begin());
  set_version(&out[4]);
  const Digest h2 = second_hash(h1_, hello_mac_, out);
  auto connection = SecretKey::make(connection_key(pair_key(*shared, self_.mix_with(role_)), h2));
  if (!connection.ok()) return HandshakeError::kPages;
  connection_ = std::move(connection).value();
  const auto mac = cut(hmac_sha256(ack_key(*connection_).bytes(), {h2}));
  std::copy(mac.begin(), mac.end(), out.begin() + kAckHead);
  expected_ = confirmation(*connection_, h2, out);
  return HandshakeError::kNone;
}

HandshakeError Acceptor::check_confirm(std::span<const std::byte, kConfirmSize> confirm) const {
  return same(expected_, confirm) ? HandshakeError::kNone : HandshakeError::kMac;
}

StreamChains Acceptor::chains() const { return chains_of(*connection_, true, self_.mode, suite_); }

HandshakeError Connector::hello(std::span<const std::byte, kChallengeSize> challenge,
                                std::span<const std::byte, kHelloHead> head,
                                const HandshakeNonce& nonce, HelloBytes& out) {
  if (wire::load<uint32_t>(&challenge[0]) != kChallengeMagic) return HandshakeError::kNotGuarded;
  if (!has_version(&challenge[4])) return HandshakeError::kVersion;
  if (wire::load<uint8_t>(&challenge[6]) != static_cast<uint8_t>(self_.mode)) {
    return HandshakeError::kMode;
  }
  const auto suite = choose_suite(self_.suites, wire::load<uint8_t>(&challenge[7]));
  if (!suite) return HandshakeError::kSuite;
  suite_ = *suite;
  std::copy(head.begin(), head.end(), out.begin());
  set_version(&out[4]);
  wire::store<uint8_t>(&out[30], static_cast<uint8_t>(self_.role));
  wire::store<uint8_t>(&out[31], pack(self_.mode, suite_));
  std::copy(nonce.begin(), nonce.end(), out.begin() + kHelloHead);
  const PublicKey& own = self_.pair.public_key();
  std::copy(own.begin(), own.end(), out.begin() + 48);
  h1_ = first_hash(challenge, out);
  hello_mac_ = cut(hmac_sha256(self_.hello_with(role_).bytes(), {h1_}));
  std::copy(hello_mac_.begin(), hello_mac_.end(), out.begin() + kMacAt);
  return HandshakeError::kNone;
}

HandshakeError Connector::check_ack(std::span<const std::byte, kGuardedAckSize> ack,
                                    ConfirmBytes& confirm) {
  if (!has_version(&ack[4])) return HandshakeError::kVersion;
  const auto shared = self_.pair.shared(peer_);
  if (!shared.ok()) return HandshakeError::kKey;
  const Digest h2 = second_hash(h1_, hello_mac_, ack);
  auto connection = SecretKey::make(connection_key(pair_key(*shared, self_.mix_with(role_)), h2));
  if (!connection.ok()) return HandshakeError::kPages;
  connection_ = std::move(connection).value();
  const auto mac = cut(hmac_sha256(ack_key(*connection_).bytes(), {h2}));
  if (!same(mac, ack.subspan<kAckHead>())) return HandshakeError::kMac;
  confirm = confirmation(*connection_, h2, ack);
  return HandshakeError::kNone;
}

StreamChains Connector::chains() const {
  return chains_of(*connection_, false, self_.mode, suite_);
}

}  // namespace mcast::crypto
