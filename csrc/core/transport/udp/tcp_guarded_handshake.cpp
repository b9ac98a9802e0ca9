// Makes the connections of a TcpStream on a guarded lane: as in tcp_handshake.cpp, but by the four
// messages of crypto/handshake.h. The acceptor speaks first: the Challenge is its cookie, which
// keeps a replayed Hello from costing more than one HMAC. Peers, connections and keys are created
// only after the other end has shown that it knows the secret. The link is bound to the connection
// when the connector has proved its private key, by the Confirm. The choice between two
// simultaneous attempts is made at the same point as without a guard, at the Hello; the losing side
// then waits for the Confirm, and tries again if none arrives.
#include "transport/udp/tcp_guarded_handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace mcast {

void TcpGuardedHandshake::on_message(TcpStream& s, HalfOpen::Place& place) {
  return place.answered ? on_confirm(s, place) : on_hello(s, place);
}

void TcpGuardedHandshake::refuse(TcpStream& s, HalfOpen::Place& place) {
  s.refusals_.note(Cause::hello_refused, place.from);
  s.half_open_.reset(place);
}

bool TcpGuardedHandshake::challenge(const TcpStream& s, HalfOpen::Place& place) {
  if (!guarded::Acceptor::make(*s.options_.identity, place.acceptor)) return false;
  place.await(crypto::kGuardedHelloSize);
  const auto& bytes = place.acceptor->challenge();
  return ::send(place.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

void TcpGuardedHandshake::failed(TcpStream& s, const TcpConnection& c, const Status& why) {
  if (why.code() == Code::kUnavailable) return s.attempt_failed(c, EAGAIN);
  ++s.stats_.hello_refused;
  s.fail_peer(c.peer,
              guarded::cannot_guard(endpoint_text(s.peers_[c.peer].address, c.stripe), why));
}

void TcpGuardedHandshake::no_challenge(TcpStream& s, const TcpConnection& c) {
  failed(s, c, guarded::no_challenge());
}

void TcpGuardedHandshake::on_challenge(TcpStream& s, TcpConnection& c) {
  const auto io = c.read_exactly(crypto::kChallengeSize);
  if (io == TcpConnection::Io::kAgain) return;
  if (io != TcpConnection::Io::kOk) {
    if (c.partial.empty()) return s.attempt_failed(c, kNoWord);
    return s.attempt_failed(c, c.error != 0 ? c.error : ECONNRESET);
  }
  crypto::HelloBytes hello;
  const std::span<const std::byte, crypto::kChallengeSize> challenge(c.partial.data(),
                                                                     crypto::kChallengeSize);
  const Status status = c.guard->connector->on_challenge(challenge, hello);
  if (!status.ok()) return failed(s, c, status);
  c.partial.clear();
  if (!c.write_message(hello)) return s.attempt_failed(c, c.error);
  c.state = TcpConnection::State::kHelloSent;
}

std::optional<HelloAck> TcpGuardedHandshake::check_ack(TcpStream& s, TcpConnection& c) {
  const std::span<const std::byte, crypto::kGuardedAckSize> bytes(c.partial.data(),
                                                                  crypto::kGuardedAckSize);
  crypto::ConfirmBytes confirm;
  const auto ack = c.guard->connector->on_ack(bytes, confirm);
  if (!ack.ok()) {
    failed(s, c, ack.status());
    return std::nullopt;
  }
  if (!*ack || (*ack)->verdict != Verdict::kAccepted) return *ack;
  const Status started = c.guard->start(c.guard->connector->chains(), s.options_.identity->limits);
  c.guard->connector.reset();  // drops the connection's ephemeral key too
  if (!started.ok()) {
    s.fail_peer(c.peer, started);
  } else if (!c.write_message(confirm)) {
    s.attempt_failed(c, c.error);
  }
  return *ack;
}

void TcpGuardedHandshake::on_hello(TcpStream& s, HalfOpen::Place& place) {
  using Answer = guarded::Acceptor::Answer;
  if (!place.acceptor->proven(place.bytes)) return refuse(s, place);
  const auto hello =
      decode_guarded_hello(std::span<const std::byte>(place.bytes).first<kHelloSize>());
  if (!hello || !hello->is_for(s.uid_, s.stripe_.size())) return refuse(s, place);
  const auto known = s.by_uid_.find(hello->source);
  TcpStream::Link* link = nullptr;
  guarded::Acquaintance who;
  who.welcome = s.guests_.welcome();
  if (known != s.by_uid_.end()) {
    TcpStream::Peer& peer = s.peers_[known->second];
    link = &peer.links[line_of(hello->channel, hello->stripe)];
    who = {!peer.down, &peer.address, link->stays(s.uid_, hello->source)};
  }
  crypto::AckBytes ack;
  const Answer answer = place.acceptor->answer(who, s.uid_, hello->channel, ack);
  if (answer == Answer::kImpostor) guarded::log_impostor(endpoint_text(*who.address));
  if (answer == Answer::kRefused || answer == Answer::kImpostor) return refuse(s, place);
  const bool said = ::send(place.fd.get(), ack.data(), ack.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(ack.size());
  if (!said || answer == Answer::kYield) {
    (void)s.half_open_.release(place);
    return;
  }
  if (link != nullptr) {
    // Act as if it were open already: a decision that the two ends have made is not made again.
    if (link->connection != nullptr) {
      ++s.stats_.yielded;
      s.pool_.retire(*link->connection);
      link->connection = nullptr;
    }
    link->phase = TcpStream::Phase::kYielded;
    link->awaits_confirm = true;
    link->deadline_set = false;
    s.timers_.touch();
  }
  place.answered = hello;
  place.await(crypto::kConfirmSize);
  s.on_hello(place);
}

void TcpGuardedHandshake::on_confirm(TcpStream& s, HalfOpen::Place& place) {
  const std::span<const std::byte> bytes(place.bytes);
  if (!place.acceptor->confirmed(bytes.first<crypto::kConfirmSize>())) return refuse(s, place);
  const Hello hello = *place.answered;
  const auto known = s.by_uid_.find(hello.source);
  PeerId id = known == s.by_uid_.end() ? kNoPeer : known->second;
  if (id == kNoPeer ? !s.guests_.welcome() : s.peers_[id].down) return refuse(s, place);
  const crypto::PublicKey key = place.acceptor->peer_key();
  if (id == kNoPeer) {
    id = s.new_guest(hello, place.from);
    s.peers_[id].address.key = key;
  } else if (s.peers_[id].address.host.empty()) {  // an expected peer
    s.add_peer({hello.source, place.from.address.text(), hello.listen_port, key,
                s.peers_[id].address.aggregator});
  }
  TcpStream::Link& link = s.peers_[id].links[line_of(hello.channel, hello.stripe)];
  // (Its key may have been learnt since the Hello.)
  if (s.peers_[id].down || !place.acceptor->fits(s.peers_[id].address) ||
      link.phase == TcpStream::Phase::kOpen || link.phase == TcpStream::Phase::kEnded) {
    return s.half_open_.reset(place);
  }
  auto guard = std::make_unique<TcpGuard>();
  const Status started = guard->start(place.acceptor->chains(), s.options_.identity->limits);
  Fd fd = s.half_open_.release(place);
  TcpConnection* const c =
      started.ok() ? s.pool_.add(std::move(fd), TcpConnection::State::kHelloSent, EPOLLIN)
                   : nullptr;
  if (c == nullptr) {
    // A stranger without a connection would stay permanently; a rank that was added tries again.
    const auto& links = s.peers_[id].links;
    const bool connected = std::any_of(links.begin(), links.end(), [](const TcpStream::Link& l) {
      return l.phase == TcpStream::Phase::kOpen;
    });
    if (s.peers_[id].stranger && !connected) {
      s.fail_peer(id, Status(Code::kPeerLost, "it went away"));
    }
    return;
  }
  c->peer = id;
  c->channel = hello.channel;
  c->stripe = hello.stripe;
  c->numbered = hello.channel != Channel::kControl && hello.stripes > 1;
  c->guard = std::move(guard);
  if (link.connection != nullptr) {
    ++s.stats_.yielded;
    s.pool_.retire(*link.connection);
  }
  s.adopt(*c);
}

}  // namespace mcast
