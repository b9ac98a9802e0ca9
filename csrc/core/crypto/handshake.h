// Start of a guarded stream connection: four fixed messages (docs/security.md). Both ends prove
// that they know the job's secret and the private key of the endpoint that they claim to be, agree
// on a suite, and get fresh keys for each direction. The mode is not negotiated.
//
//   Challenge (acceptor, 24)  0 "MCSC", 4 version u16, 6 mode u8, 7 suites u8, 8 nonce 16
//   Hello (connector, 96)     0 the transport's own 32 bytes, of which this sets: 4 version u16,
//                             30 role u8, 31 mode and suite; 32 nonce 16, 48 X25519 key 32,
//                             80 HMAC(hello_key, h1)
//   HelloAck (acceptor, 32)   0 the transport's own 16 bytes (4 version u16), 16 HMAC(ack_key, h2)
//   Confirm (connector, 16)   HMAC(confirm_key, h2 | HelloAck)
//
// h1 = SHA-256(Challenge | Hello[0..80)), h2 = SHA-256(h1 | Hello[80..96) | HelloAck[0..16)); MACs
// are cut to 16 bytes. Until the Hello's MAC fits, an acceptor has spent one SHA-256 and one HMAC
// of fixed length, and holds 24 bytes.
//
// Pure: random bytes are arguments. Needs an ok() of load_library(). Not thread-safe.
#pragma once

#include <array>
#include <optional>

#include "crypto/arena.h"
#include "crypto/kdf.h"
#include "crypto/limits.h"

namespace mcast::crypto {

inline constexpr uint16_t kGuardedStreamVersion = 2;
inline constexpr size_t kChallengeSize = 24, kGuardedHelloSize = 96, kGuardedAckSize = 32,
                        kConfirmSize = 16, kHandshakeNonce = 16;
inline constexpr size_t kHelloHead = 32, kAckHead = 16;
using ChallengeBytes = std::array<std::byte, kChallengeSize>;
using HelloBytes = std::array<std::byte, kGuardedHelloSize>;
using AckBytes = std::array<std::byte, kGuardedAckSize>;
using ConfirmBytes = std::array<std::byte, kConfirmSize>;
using HandshakeNonce = std::array<std::byte, kHandshakeNonce>;

// The peer's role.
enum class Role : uint8_t { kRank = 0, kAggregator = 1 };

// Identity of an endpoint, for all of its handshakes, which it outlives.
struct Identity {
  Mode mode = Mode::kSealed;
  uint8_t suites = 0;  // that it accepts: suite_bit()s
  Role role = Role::kRank;
  Key hello, mix;        // derived from the job's secret: between ranks
  KeyPair pair;          // its own, made with its uid
  EpochLimits limits{};  // of its connections; the same at all endpoints
  // Derived from the secret for aggregators: used if either end is one. An aggregator has no other
  // keys.
  Key role_hello = {}, role_mix = {};

  const Key& hello_with(Role other) const noexcept { return ranks(other) ? hello : role_hello; }
  const Key& mix_with(Role other) const noexcept { return ranks(other) ? mix : role_mix; }

 private:
  bool ranks(Role other) const noexcept { return role == Role::kRank && other == Role::kRank; }
};

// The reason for which a handshake fails. The texts contain no secrets.
enum class HandshakeError : uint8_t {
  kNone,
  kNotGuarded,  // no Challenge: another protocol, or an endpoint whose security is off
  kVersion,
  kMode,   // the other end has another mode
  kSuite,  // no suite in common, or one that was not offered
  kRole,
  kMac,    // another secret, another run, or modified in transit
  kKey,    // an invalid X25519 key, or not the expected one
  kPages,  // the handshake is right, but there are no pages for the connection's key
};
const char* handshake_error_text(HandshakeError error) noexcept;

// Chains of the two directions, as seen by one end.
struct StreamChains {
  Key seal, open;
  Suite suite = Suite::kAes128Gcm;
  Mode mode = Mode::kSealed;
};

// The suite that two ends use: the first of AES-128, AES-256 and ChaCha20 that both accept.
std::optional<Suite> choose_suite(uint8_t ours, uint8_t theirs) noexcept;

// The accepting end of a connection.
class Acceptor {
 public:
  Acceptor(const Identity& self, const HandshakeNonce& nonce);

  const ChallengeBytes& challenge() const noexcept { return challenge_; }
  // Checks that the Hello answers this Challenge and was made with the secret. Does no X25519 yet.
  HandshakeError check_hello(std::span<const std::byte, kGuardedHelloSize> hello);
  // Public key in a valid Hello.
  const PublicKey& peer_key() const noexcept { return peer_key_; }
  Role peer_role() const noexcept { return role_; }
  // Makes the reply, whose head the transport has made; also for a refusal. kKey, kPages: no reply
  // was made.
  HandshakeError answer(std::span<const std::byte, kAckHead> head, AckBytes& out);
  // Checks that the connector has the private key of peer_key(). chains() is valid after that.
  HandshakeError check_confirm(std::span<const std::byte, kConfirmSize> confirm) const;
  // This object owns the connection's key, from which the chains are derived: destroy it once they
  // are used.
  StreamChains chains() const;

 private:
  const Identity& self_;
  ChallengeBytes challenge_;
  Digest h1_{};
  std::array<std::byte, 16> hello_mac_{};
  PublicKey peer_key_{};
  Role role_ = Role::kRank;
  Suite suite_ = Suite::kAes128Gcm;
  SecretKey connection_;  // set once a reply was made
  ConfirmBytes expected_{};
};

// The connecting end. It knows the other's key from its record.
class Connector {
 public:
  Connector(const Identity& self, const PublicKey& peer, Role role = Role::kRank)
      : self_(self), peer_(peer), role_(role) {}

  // `head`: the transport's own 32 bytes, in which version, role, mode and suite are set here.
  HandshakeError hello(std::span<const std::byte, kChallengeSize> challenge,
                       std::span<const std::byte, kHelloHead> head, const HandshakeNonce& nonce,
                       HelloBytes& out);
  // Checks that the reply was made with the peer's private key, and makes the confirmation.
  HandshakeError check_ack(std::span<const std::byte, kGuardedAckSize> ack, ConfirmBytes& confirm);
  // Valid after check_ack(); as the acceptor's.
  StreamChains chains() const;

 private:
  const Identity& self_;
  PublicKey peer_;
  Role role_;  // the peer's
  Digest h1_{};
  std::array<std::byte, 16> hello_mac_{};
  Suite suite_ = Suite::kAes128Gcm;
  SecretKey connection_;  // set once a reply has arrived
};

}  // namespace mcast::crypto
