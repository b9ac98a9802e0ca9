// How a guarded stream connection begins: four fixed messages (docs/security.md). Both ends prove
// that they know the job's secret and the private key of the endpoint that they claim to be, agree
// on a suite, and get fresh keys for each direction. Nobody negotiates the mode.
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
// Pure: random bytes come in. Needs an ok() of load_library(). Not thread-safe.
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

// Who is at the other end, or wants to be.
enum class Role : uint8_t { kRank = 0, kAggregator = 1 };

// What an endpoint is, for all of its handshakes; it outlives them.
struct Identity {
  Mode mode = Mode::kSealed;
  uint8_t suites = 0;  // that it takes: suite_bit()s
  Role role = Role::kRank;
  Key hello, mix;        // of the job's secret: between ranks
  KeyPair pair;          // its own, made beside its uid
  EpochLimits limits{};  // of its connections; the same at all endpoints
  // Of what follows from the secret for aggregators: with one of these at either end. An aggregator
  // has no others.
  Key role_hello = {}, role_mix = {};

  const Key& hello_with(Role other) const noexcept { return ranks(other) ? hello : role_hello; }
  const Key& mix_with(Role other) const noexcept { return ranks(other) ? mix : role_mix; }

 private:
  bool ranks(Role other) const noexcept { return role == Role::kRank && other == Role::kRank; }
};

// Why a handshake goes no further. The texts name nothing secret.
enum class HandshakeError : uint8_t {
  kNone,
  kNotGuarded,  // no Challenge: something else, or an endpoint whose security is off
  kVersion,
  kMode,   // the other end's mode is another
  kSuite,  // no suite in common, or one that was not offered
  kRole,
  kMac,    // another secret, another run, or changed on the way
  kKey,    // an X25519 key that is none, or not the one that was expected
  kPages,  // nothing is wrong with it: there are no pages for the connection's key
};
const char* handshake_error_text(HandshakeError error) noexcept;

// Chains of the two directions, as one end uses them.
struct StreamChains {
  Key seal, open;
  Suite suite = Suite::kAes128Gcm;
  Mode mode = Mode::kSealed;
};

// The suite that two ends use: the first of AES-128, AES-256 and ChaCha20 that both take.
std::optional<Suite> choose_suite(uint8_t ours, uint8_t theirs) noexcept;

// The end that was connected to.
class Acceptor {
 public:
  Acceptor(const Identity& self, const HandshakeNonce& nonce);

  const ChallengeBytes& challenge() const noexcept { return challenge_; }
  // Whether the Hello answers this Challenge and is by somebody with the secret. No X25519 yet.
  HandshakeError check_hello(std::span<const std::byte, kGuardedHelloSize> hello);
  // Of a Hello that was right.
  const PublicKey& peer_key() const noexcept { return peer_key_; }
  Role peer_role() const noexcept { return role_; }
  // The answer, of which the transport has made the head; also if it says no. kKey, kPages: there
  // is none.
  HandshakeError answer(std::span<const std::byte, kAckHead> head, AckBytes& out);
  // Whether the connector has the private key of peer_key(). Then chains() are good.
  HandshakeError check_confirm(std::span<const std::byte, kConfirmSize> confirm) const;
  // The connection's key, from which they follow, goes with this: let it go once they are used.
  StreamChains chains() const;

 private:
  const Identity& self_;
  ChallengeBytes challenge_;
  Digest h1_{};
  std::array<std::byte, 16> hello_mac_{};
  PublicKey peer_key_{};
  Role role_ = Role::kRank;
  Suite suite_ = Suite::kAes128Gcm;
  SecretKey connection_;  // once there is an answer
  ConfirmBytes expected_{};
};

// The end that connects. It knows the other's key from its record.
class Connector {
 public:
  Connector(const Identity& self, const PublicKey& peer, Role role = Role::kRank)
      : self_(self), peer_(peer), role_(role) {}

  // `head`: the transport's own 32 bytes, in which version, role, mode and suite are set here.
  HandshakeError hello(std::span<const std::byte, kChallengeSize> challenge,
                       std::span<const std::byte, kHelloHead> head, const HandshakeNonce& nonce,
                       HelloBytes& out);
  // Whether the answer is by who has the private key of the peer, and the confirmation of it.
  HandshakeError check_ack(std::span<const std::byte, kGuardedAckSize> ack, ConfirmBytes& confirm);
  // After check_ack(); as the acceptor's.
  StreamChains chains() const;

 private:
  const Identity& self_;
  PublicKey peer_;
  Role role_;  // the peer's
  Digest h1_{};
  std::array<std::byte, 16> hello_mac_{};
  Suite suite_ = Suite::kAes128Gcm;
  SecretKey connection_;  // once there was an answer
};

}  // namespace mcast::crypto
