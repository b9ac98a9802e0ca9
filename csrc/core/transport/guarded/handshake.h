// The handshake of guarded stream connections, whatever carries it: TCP, or a reliable connection
// of verbs. Both ends of crypto/handshake.h with what an endpoint decides in it: who may come,
// under which key, and whether the connection that it has itself is used instead. The carrier
// brings whole messages, and knows its peers; it makes nothing for anybody who has not shown that
// it knows the secret.
//
//   acceptor   Challenge ------------->  connector
//              <------------------ Hello   (who it is, its key, and that it knows the secret)
//              HelloAck -------------->    (the same of the acceptor, and its verdict)
//              <---------------- Confirm   (its private key); then records, both ways
//
// Pure, but for random numbers. Used by one thread.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "base/status.h"
#include "crypto/handshake.h"
#include "transport/guarded/errors.h"
#include "transport/transport.h"
#include "transport/udp/stream_wire.h"

namespace mcast::guarded {

// How long an end waits for the other's next word before the connection is a guarded one.
inline constexpr Nanos kPatience = 2 * kSecond;

// What an acceptor knows of the endpoint that a Hello names.
struct Acquaintance {
  bool welcome = false;                    // it may come
  const StreamAddress* address = nullptr;  // null: never heard of
  bool stays = false;  // the connection that there is, or is tried, is used instead
};

// The end that was connected to.
class Acceptor {
 public:
  enum class Answer { kRefused, kImpostor, kYield, kAccepted };

  // `self` outlives it.
  Acceptor(const crypto::Identity& self, const crypto::HandshakeNonce& nonce)
      : machine_(self, nonce) {}
  // With a fresh nonce. False: there are no random numbers.
  static bool make(const crypto::Identity& self, std::optional<Acceptor>& out);
  const crypto::ChallengeBytes& challenge() const noexcept { return machine_.challenge(); }

  // Whether the Hello is by somebody with the secret, for this Challenge. One HMAC; nothing in it
  // may be believed, or looked up, before.
  bool proven(std::span<const std::byte, crypto::kGuardedHelloSize> hello) {
    return machine_.check_hello(hello) == crypto::HandshakeError::kNone;
  }
  // What is said to one that is. kImpostor: another has the key of its record. `ack` is to be sent
  // with kYield and kAccepted.
  Answer answer(const Acquaintance& who, uint64_t self, Channel channel, crypto::AckBytes& ack);
  // Whether the connector has the private key of peer_key().
  bool confirmed(std::span<const std::byte, crypto::kConfirmSize> confirm) const {
    return machine_.check_confirm(confirm) == crypto::HandshakeError::kNone;
  }
  // Whether the connector's key is the one that is known of it, if one is.
  bool fits(const StreamAddress& known) const noexcept;
  const crypto::PublicKey& peer_key() const noexcept { return machine_.peer_key(); }
  crypto::StreamChains chains() const { return machine_.chains(); }

 private:
  crypto::Acceptor machine_;
};

// The end that connects. It says nothing before the Challenge.
class Connector {
 public:
  using Head = std::array<std::byte, crypto::kHelloHead>;

  // `head`: what the transport has to say in the Hello. `self` outlives it.
  Connector(const crypto::Identity& self, const StreamAddress& peer, const Head& head)
      : machine_(self, peer.key, peer.aggregator ? crypto::Role::kAggregator : crypto::Role::kRank),
        head_(head) {}

  // kUnavailable: there are no random numbers, later perhaps; else the connection cannot be had.
  Status on_challenge(std::span<const std::byte, crypto::kChallengeSize> challenge,
                      crypto::HelloBytes& hello);
  // What the acceptor has said, and what is to be sent if it has accepted; else as above.
  Result<std::optional<HelloAck>> on_ack(std::span<const std::byte, crypto::kGuardedAckSize> ack,
                                         crypto::ConfirmBytes& confirm);
  crypto::StreamChains chains() const { return machine_.chains(); }

 private:
  crypto::Connector machine_;
  Head head_;
};

// What is told of an address that is known already. False: both have a key, and not the same one
// (two_keys()): who has connected has the secret, and proved another than was published.
bool learn(StreamAddress& known, const StreamAddress& told);

}  // namespace mcast::guarded
