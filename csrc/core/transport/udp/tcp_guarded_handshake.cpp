// How a TcpStream of a guarded lane gets its connections: as in tcp_handshake.cpp, but by the four
// messages of crypto/handshake.h. The acceptor speaks first: the Challenge is its cookie, which
// keeps a replayed Hello from costing more than one HMAC. Peers, connections and keys are made for
// who has shown that it knows the secret; the link is bound to the connection when the connector
// has proved its private key, by the Confirm. Which of two simultaneous attempts is used is decided
// where it is without a guard, at the Hello; the loser's side then waits for the Confirm, and tries
// again if none comes.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/random.h"
#include "transport/udp/tcp_stream.h"

namespace mcast {

using crypto::HandshakeError;

bool TcpStream::challenge(HalfOpen::Place& place) {
  crypto::HandshakeNonce nonce;
  if (!secure_random_bytes(nonce)) return false;
  place.acceptor.emplace(*options_.identity, nonce);
  place.await(crypto::kGuardedHelloSize);
  const auto& bytes = place.acceptor->challenge();
  return ::send(place.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

void TcpStream::handshake_failed(const TcpConnection& c, HandshakeError error) {
  ++stats_.hello_refused;
  fail_peer(c.peer, Status(Code::kPeerLost, "cannot make a guarded connection to " +
                                                endpoint_text(peers_[c.peer].address, c.stripe) + ": " +
                                                crypto::handshake_error_text(error)));
}

void TcpStream::on_challenge(TcpConnection& c) {
  const auto io = c.read_exactly(crypto::kChallengeSize);
  if (io == TcpConnection::Io::kAgain) return;
  if (io != TcpConnection::Io::kOk) {
    return attempt_failed(c, c.error != 0 ? c.error : ECONNRESET);
  }
  crypto::HandshakeNonce nonce;
  if (!secure_random_bytes(nonce)) return attempt_failed(c, EAGAIN);
  crypto::HelloBytes hello;
  const std::span<const std::byte, crypto::kChallengeSize> challenge(c.partial.data(),
                                                                     crypto::kChallengeSize);
  const auto error = c.guard->connector().hello(challenge, encode(own_hello(c)), nonce, hello);
  if (error != HandshakeError::kNone) return handshake_failed(c, error);
  c.partial.clear();
  if (!c.write_message(hello)) return attempt_failed(c, c.error);
  c.state = TcpConnection::State::kHelloSent;
  c.deadline_set = false;
}

void TcpStream::on_guarded_ack(TcpConnection& c) {
  const auto io = c.read_exactly(crypto::kGuardedAckSize);
  if (io == TcpConnection::Io::kAgain) return;
  if (io != TcpConnection::Io::kOk) {
    return attempt_failed(c, c.error != 0 ? c.error : ECONNRESET);
  }
  const std::span<const std::byte, crypto::kGuardedAckSize> bytes(c.partial.data(),
                                                                  crypto::kGuardedAckSize);
  crypto::ConfirmBytes confirm;
  const auto error = c.guard->connector().check_ack(bytes, confirm);
  if (error != HandshakeError::kNone) return handshake_failed(c, error);
  const auto ack = decode_guarded_ack(bytes.first<kHelloAckSize>());
  if (!ack || ack->uid != peers_[c.peer].address.uid || ack->channel != c.channel) {
    ++stats_.hello_refused;
    return attempt_failed(c, EPROTO);
  }
  if (ack->verdict == Verdict::kAccepted) {
    const Status started = c.guard->start(c.guard->connector().chains(), options_.identity->limits);
    if (!started.ok()) return fail_peer(c.peer, started);
    if (!c.write_message(confirm)) return attempt_failed(c, c.error);
  }
  follow_verdict(c, ack->verdict);
}

void TcpStream::on_guarded_hello(HalfOpen::Place& place) {
  // One HMAC, whoever it is; only then is anything believed or looked up.
  if (place.acceptor->check_hello(place.bytes) != HandshakeError::kNone) return refuse(place);
  const auto hello =
      decode_guarded_hello(std::span<const std::byte>(place.bytes).first<kHelloSize>());
  if (!hello || !fits(*hello)) return refuse(place);
  const auto known = by_uid_.find(hello->source);
  const PeerId id = known == by_uid_.end() ? kNoPeer : known->second;
  if (id == kNoPeer ? !guests_.welcome() : peers_[id].down) return refuse(place);
  Link* const link =
      id == kNoPeer ? nullptr : &peers_[id].links[line_of(hello->channel, hello->stripe)];
  if (link != nullptr) {
    constexpr crypto::PublicKey kUnknown{};
    const crypto::PublicKey& key = peers_[id].address.key;
    if (key != kUnknown && key != place.acceptor->peer_key()) {
      log(LogLevel::kWarn, "two processes claim to be %s: a connection was refused",
          endpoint_text(peers_[id].address).c_str());
      return refuse(place);
    }
  }
  const bool yield = link != nullptr && yields(*link, hello->source);
  const auto head =
      encode(HelloAck{yield ? Verdict::kYield : Verdict::kAccepted, hello->channel, uid_});
  crypto::AckBytes ack;
  if (place.acceptor->answer(head, ack) != HandshakeError::kNone) return refuse(place);
  const bool said = ::send(place.fd.get(), ack.data(), ack.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(ack.size());
  if (!said || yield) {
    (void)half_open_.release(place);
    return;
  }
  if (link != nullptr) {
    // As if it were there already: what the two ends have decided is not decided again.
    if (link->connection != nullptr) {
      ++stats_.yielded;
      pool_.retire(*link->connection);
      link->connection = nullptr;
    }
    link->phase = Phase::kYielded;
    link->awaits_confirm = true;
    link->deadline_set = false;
    timers_.touch();
  }
  place.answered = hello;
  place.await(crypto::kConfirmSize);
  on_hello(place);
}

void TcpStream::on_confirm(HalfOpen::Place& place) {
  const std::span<const std::byte> bytes(place.bytes);
  if (place.acceptor->check_confirm(bytes.first<crypto::kConfirmSize>()) != HandshakeError::kNone) {
    return refuse(place);
  }
  const Hello hello = *place.answered;
  const auto known = by_uid_.find(hello.source);
  PeerId id = known == by_uid_.end() ? kNoPeer : known->second;
  if (id == kNoPeer ? !guests_.welcome() : peers_[id].down) return refuse(place);
  const crypto::PublicKey key = place.acceptor->peer_key();
  if (id == kNoPeer) {
    id = guest(hello, place.from);
    peers_[id].address.key = key;
  } else if (peers_[id].address.host.empty()) {  // one that was expected
    add_peer({hello.source, to_text(hello.listen_address), hello.listen_port, key});
  }
  Link& link = peers_[id].links[line_of(hello.channel, hello.stripe)];
  if (peers_[id].down || link.phase == Phase::kOpen || link.phase == Phase::kEnded) {
    return half_open_.reset(place);
  }
  auto guard = std::make_unique<TcpGuard>(*options_.identity, key);
  const Status started = guard->start(place.acceptor->chains(), options_.identity->limits);
  Fd fd = half_open_.release(place);
  TcpConnection* const c =
      started.ok() ? pool_.add(std::move(fd), TcpConnection::State::kHelloSent, EPOLLIN) : nullptr;
  if (c == nullptr) {
    return fail_peer(id, started.ok() ? Status(Code::kPeerLost, "it went away") : started);
  }
  c->peer = id;
  c->channel = hello.channel;
  c->stripe = hello.stripe;
  c->numbered = hello.channel != Channel::kControl && hello.stripes > 1;
  c->guard = std::move(guard);
  if (link.connection != nullptr) {
    ++stats_.yielded;
    pool_.retire(*link.connection);
  }
  adopt(*c);
}

}  // namespace mcast
