// The handshake of guarded stream connections over any carrier: TCP, or a reliable connection of
// verbs. It has both ends of crypto/handshake.h and the decisions that an endpoint makes: who may
// connect, under which key, and whether an existing connection is used instead. The carrier
// delivers whole messages, and knows its peers; it creates nothing for a connector that has not
// proved that it knows the secret.
//
//   acceptor   Challenge ------------->  connector
//              <------------------ Hello   (who it is, its key, and that it knows the secret)
//              HelloAck -------------->    (the same of the acceptor, and its verdict)
//              <---------------- Confirm   (its private key); then records, both ways
//
// Pure, except for random numbers. Used by one thread.
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

// How long an end waits for the next handshake message.
inline constexpr Nanos kPatience = 2 * kSecond;

// State of the acceptor's endpoint regarding the endpoint that a Hello names.
struct Acquaintance {
  bool welcome = false;                    // it may connect
  const StreamAddress* address = nullptr;  // null if it is not known
  bool stays = false;  // the existing connection, or the attempt under way, is used instead
};

// The end that accepts the connection.
class Acceptor {
 public:
  enum class Answer { kRefused, kImpostor, kYield, kAccepted };

  // `self` must outlive it.
  Acceptor(const crypto::Identity& self, const crypto::HandshakeNonce& nonce)
      : machine_(self, nonce) {}
  // Makes one with a fresh nonce. Returns false if there are no random numbers.
  static bool make(const crypto::Identity& self, std::optional<Acceptor>& out);
  const crypto::ChallengeBytes& challenge() const noexcept { return machine_.challenge(); }

  // Returns true if the Hello comes from an end that knows the secret, for this Challenge. One
  // HMAC; before it, no field of the Hello may be trusted or looked up.
  bool proven(std::span<const std::byte, crypto::kGuardedHelloSize> hello) {
    return machine_.check_hello(hello) == crypto::HandshakeError::kNone;
  }
  // Returns the reply to a proven Hello. kImpostor: the record has another key. `ack` is to be sent
  // with kYield and kAccepted.
  Answer answer(const Acquaintance& who, uint64_t self, Channel channel, crypto::AckBytes& ack);
  // Returns true if the connector has the private key of peer_key().
  bool confirmed(std::span<const std::byte, crypto::kConfirmSize> confirm) const {
    return machine_.check_confirm(confirm) == crypto::HandshakeError::kNone;
  }
  // Returns true if the connector's key is the known one, or none is known.
  bool fits(const StreamAddress& known) const noexcept;
  const crypto::PublicKey& peer_key() const noexcept { return machine_.peer_key(); }
  crypto::StreamChains chains() const { return machine_.chains(); }

 private:
  crypto::Acceptor machine_;
};

// The end that connects. It sends nothing before the Challenge.
class Connector {
 public:
  using Head = std::array<std::byte, crypto::kHelloHead>;

  // `head`: the transport's part of the Hello. `self` must outlive it.
  Connector(const crypto::Identity& self, const StreamAddress& peer, const Head& head)
      : machine_(self, peer.key, peer.aggregator ? crypto::Role::kAggregator : crypto::Role::kRank),
        head_(head) {}

  // kUnavailable: there are no random numbers, perhaps later; any other error: the connection
  // cannot be made.
  Status on_challenge(std::span<const std::byte, crypto::kChallengeSize> challenge,
                      crypto::HelloBytes& hello);
  // Returns the acceptor's reply, and sets the message to send if it has accepted; errors as above.
  Result<std::optional<HelloAck>> on_ack(std::span<const std::byte, crypto::kGuardedAckSize> ack,
                                         crypto::ConfirmBytes& confirm);
  crypto::StreamChains chains() const { return machine_.chains(); }

 private:
  crypto::Connector machine_;
  Head head_;
};

// Updates a known address with a newly received one. Returns false if both have a key and the keys
// differ (two_keys()): the connector has the secret, and proved a key other than the published one.
bool learn(StreamAddress& known, const StreamAddress& told);

}  // namespace mcast::guarded
