// An acceptor checks in the order of cost: one HMAC for any connector; then, if it knows the
// secret, whether it may connect at all, whether its role is the known one, whether its key is that
// of its record; X25519 last, for the reply. The decision between two simultaneous attempts is part
// of the reply, so that both ends see it authenticated.
#include "transport/guarded/handshake.h"

#include "base/random.h"

namespace mcast::guarded {

using crypto::HandshakeError;
using crypto::PublicKey;

namespace {

constexpr PublicKey kUnknown{};

Status why(HandshakeError error) {
  return Status(Code::kPeerLost, crypto::handshake_error_text(error));
}

}  // namespace

bool Acceptor::make(const crypto::Identity& self, std::optional<Acceptor>& out) {
  crypto::HandshakeNonce nonce;
  if (!secure_random_bytes(nonce)) return false;
  out.emplace(self, nonce);
  return true;
}

bool Acceptor::fits(const StreamAddress& known) const noexcept {
  return known.key == kUnknown || known.key == peer_key();
}

Acceptor::Answer Acceptor::answer(const Acquaintance& who, uint64_t self, Channel channel,
                                  crypto::AckBytes& ack) {
  if (!who.welcome) return Answer::kRefused;
  // No rank waits for an aggregator that it does not know.
  const bool aggregator = machine_.peer_role() == crypto::Role::kAggregator;
  if (aggregator != (who.address != nullptr && who.address->aggregator)) return Answer::kRefused;
  if (who.address != nullptr && !fits(*who.address)) return Answer::kImpostor;
  const auto head =
      encode(HelloAck{who.stays ? Verdict::kYield : Verdict::kAccepted, channel, self});
  if (machine_.answer(head, ack) != HandshakeError::kNone) return Answer::kRefused;
  return who.stays ? Answer::kYield : Answer::kAccepted;
}

Status Connector::on_challenge(std::span<const std::byte, crypto::kChallengeSize> challenge,
                               crypto::HelloBytes& hello) {
  crypto::HandshakeNonce nonce;
  if (!secure_random_bytes(nonce))
    return Status(Code::kUnavailable, "the kernel refuses random numbers");
  const auto error = machine_.hello(challenge, head_, nonce, hello);
  return error == HandshakeError::kNone ? Status() : why(error);
}

Result<std::optional<HelloAck>> Connector::on_ack(
    std::span<const std::byte, crypto::kGuardedAckSize> ack, crypto::ConfirmBytes& confirm) {
  const auto error = machine_.check_ack(ack, confirm);
  if (error != HandshakeError::kNone) return why(error);
  return decode_guarded_ack(ack.first<kHelloAckSize>());
}

bool learn(StreamAddress& known, const StreamAddress& told) {
  const bool keyed = told.key != kUnknown;
  const bool same = known.key == kUnknown || !keyed || known.key == told.key;
  const PublicKey key = keyed ? told.key : known.key;
  const bool aggregator = keyed ? told.aggregator : known.aggregator;
  // Keep the newest address: the first may only be the one in the peer's Hello.
  known = told;
  known.key = key;
  known.aggregator = aggregator;
  return same;
}

}  // namespace mcast::guarded
