// Makes the connections of an RcStream on a guarded lane: by the state machine of
// transport/guarded, as over TCP. The acceptor speaks first here, too: its Challenge is sent with
// the accept, before which it has posted its receives; so the connector never sends into a queue
// pair that is not ready.
//
// A connect request claims a uid and proves nothing. It takes a place, and gets a connection that
// is not bound to a peer (half open): it neither creates nor changes a peer. A connector that finds
// no place is refused with kLater, and tries again until the liveness limit. A connection that was
// accepted is never dropped for another, since its connector would have to begin again. At the
// Hello, whose MAC proves knowledge of the secret, the two ends decide between simultaneous
// attempts. At the Confirm the connection is bound to the peer; the connector learns that from the
// first record and holds back its frames until then. If a connection ends before that, the waiting
// side tries again by itself.
#include "transport/verbs/rc_guarded_handshake.h"

#include <algorithm>

#include "base/log.h"
#include "transport/udp/socket.h"

namespace mcast::verbs {

namespace {

constexpr uint16_t kGuardedVersion = crypto::kGuardedStreamVersion;
static_assert(kHello == crypto::kHelloHead);

}  // namespace

// Returns true if this endpoint accepts connections of that peer, as far as it knows now.
bool RcGuardedHandshake::welcome(const RcStream& s, uint64_t source) {
  const auto known = s.by_uid_.find(source);
  if (known == s.by_uid_.end()) return s.listener_.guests.welcome() && !s.closing_;
  const RcStream::Peer& peer = s.peers_[known->second];
  // While closing down, accept only connections that we wait for: our last frames may need them.
  return peer.phase != Phase::kEnded && (!s.closing_ || peer.goodbye_due);
}

bool RcGuardedHandshake::has_place(const RcStream& s, uint64_t claimed) {
  const bool known = s.by_uid_.count(claimed) > 0;
  size_t same = 0, unknown = 0;
  for (const auto& [serial, c] : s.connections_) {
    if (c->state != State::kHalfOpen) continue;
    same += c->guard->claimed == claimed ? 1 : 0;
    unknown += s.by_uid_.count(c->guard->claimed) == 0 ? 1 : 0;
  }
  return same < kPlacesOfPeer && (known || unknown < kPlacesOfUnknown);
}

// Reported once per uid: an honest rank that is early asks five times a second.
void RcGuardedHandshake::later(RcStream& s, const CmEvent& event, uint64_t claimed, Cause cause) {
  if (s.listener_.told_later.size() >= kToldLater) s.listener_.told_later.clear();
  if (s.listener_.told_later.insert(claimed).second) s.refusals_.note(cause, peer_of(event.id));
  s.refuse(event.id, Refusal::kLater);
}

void RcGuardedHandshake::on_request(RcStream& s, const CmEvent& event) {
  const Source from = peer_of(event.id);
  const auto hello = decode_hello(event.data, kGuardedVersion);
  if (!hello || !hello->is_for(s.uid_)) {
    s.refusals_.note(Cause::hello_refused, from);
    return s.refuse(event.id, Refusal::kStranger);
  }
  if (!welcome(s, hello->source)) {
    // It may be early, unless it is a peer that is already over here.
    const bool known = s.by_uid_.count(hello->source) > 0;
    if (!known && !s.closing_) return later(s, event, hello->source, Cause::hello_refused);
    s.refusals_.note(Cause::hello_refused, from);
    return s.refuse(event.id, Refusal::kStranger);
  }
  auto guard = std::make_unique<RcGuard>();
  if (!has_place(s, hello->source) ||
      !guarded::Acceptor::make(*s.options_.identity, guard->acceptor)) {
    return later(s, event, hello->source, Cause::crowded_out);
  }
  guard->awaits = Awaits::kProof;
  guard->claimed = hello->source;
  guard->from = from;
  Connection* const c = s.make_connection(kNoPeer, State::kHalfOpen);
  c->adopt(event.id);
  c->guard = std::move(guard);
  s.timers_.touch();
  auto queue = s.queue_with_room();
  Status status = queue.status();
  if (queue.ok()) status = c->prepare(*queue, s.options_.liveness_limit);
  if (status.ok()) status = c->accept(c->guard->acceptor->challenge());
  if (status.ok()) return;
  log(LogLevel::kWarn, "a connection from %s was not accepted: %s", from.text().c_str(),
      status.message().c_str());
  s.retire(*c);
}

Status RcGuardedHandshake::connect(RcStream& s, Connection& c, const Hello& hello) {
  const auto head = encode(hello, kGuardedVersion);
  c.guard = std::make_unique<RcGuard>();
  c.guard->connector.emplace(*s.options_.identity, s.peers_[c.peer].address, head);
  return c.connect(head);
}

void RcGuardedHandshake::failed(RcStream& s, const Connection& c, const Status& why) {
  if (why.code() == Code::kUnavailable) return s.attempt_failed(c.peer, why);
  ++s.stats_.hello_refused;
  s.fail_peer(c.peer, guarded::cannot_guard(s.text(c.peer), why));
}

void RcGuardedHandshake::on_challenge(RcStream& s, Connection& c, ConstBytes challenge) {
  if (c.guard->awaits != Awaits::kChallenge) return;
  if (s.peers_[c.peer].connection != &c) return s.retire(c);
  if (challenge.size() < crypto::kChallengeSize) return failed(s, c, guarded::no_challenge());
  crypto::HelloBytes hello;
  Status status =
      c.guard->connector->on_challenge(challenge.first<crypto::kChallengeSize>(), hello);
  if (!status.ok()) return failed(s, c, status);
  c.state = State::kHandshake;
  c.guard->awaits = Awaits::kAck;
  status = c.send_plain(hello);
  if (!status.ok()) s.attempt_failed(c.peer, status);
}

void RcGuardedHandshake::on_message(RcStream& s, Connection& c, const ibv_wc& wc) {
  const ConstBytes bytes = c.received(wc);
  std::array<std::byte, crypto::kGuardedHelloSize> copy;
  const ConstBytes message(copy.data(), std::min(bytes.size(), copy.size()));
  std::copy_n(bytes.begin(), message.size(), copy.begin());
  if (c.guard->awaits == Awaits::kEnd) return s.retire(c);  // no message is left to send
  const bool fits = bytes.size() == message.size();
  c.owe();
  if (Status status = c.repost(Connection::number_of(wc.wr_id)); !status.ok()) {
    c.problem = status;
    return;
  }
  switch (c.guard->awaits) {
    case Awaits::kProof:
      return fits && message.size() == crypto::kGuardedHelloSize ? on_hello(s, c, message)
                                                                 : refuse(s, c);
    case Awaits::kConfirm:
      return message.size() == crypto::kConfirmSize ? on_confirm(s, c, message) : refuse(s, c);
    case Awaits::kAck:
      return on_ack(s, c, message);
    case Awaits::kChallenge:  // a message before the event that has the Challenge
      return s.attempt_failed(c.peer, guarded::ended_early());
    default:
      return;
  }
}

void RcGuardedHandshake::on_hello(RcStream& s, Connection& c, ConstBytes bytes) {
  using Answer = guarded::Acceptor::Answer;
  RcGuard& guard = *c.guard;
  if (!guard.acceptor->proven(bytes.first<crypto::kGuardedHelloSize>())) return refuse(s, c);
  const auto hello = decode_hello(bytes, kGuardedVersion);
  if (!hello || !hello->is_for(s.uid_) || hello->source != guard.claimed) return refuse(s, c);
  const auto known = s.by_uid_.find(hello->source);
  RcStream::Peer* const peer = known == s.by_uid_.end() ? nullptr : &s.peers_[known->second];
  guarded::Acquaintance who{welcome(s, hello->source), nullptr, false};
  if (peer != nullptr) {
    who.address = &peer->address;
    // If our Hello has not left, the peer does not know our attempt: use its own.
    const bool ours_wins = peer->phase == Phase::kAttempt &&
                           peer->connection->state == State::kHandshake && s.uid_ < hello->source;
    who.stays = ours_wins || peer->phase == Phase::kOpen;
  }
  crypto::AckBytes ack;
  const Answer answer = guard.acceptor->answer(who, s.uid_, Channel::kControl, ack);
  if (answer == Answer::kImpostor) guarded::log_impostor(s.text(known->second));
  if (answer == Answer::kRefused || answer == Answer::kImpostor) return refuse(s, c);
  if (!c.send_plain(ack).ok()) return gone(s, c);
  guard.listen_address = hello->listen_address;
  guard.listen_port = hello->listen_port;
  guard.awaits = answer == Answer::kYield ? Awaits::kEnd : Awaits::kConfirm;
  guard.since = kNever;
  s.timers_.touch();
  if (peer == nullptr || answer == Answer::kYield) return;
  // Act as if it were open already: a decision that the two ends have made is not made again.
  if (peer->connection != nullptr) {
    ++s.stats_.yielded;
    s.retire(*peer->connection);
    peer->connection = nullptr;
  }
  peer->phase = Phase::kYielded;
  peer->confirms = c.serial();
}

void RcGuardedHandshake::on_confirm(RcStream& s, Connection& c, ConstBytes bytes) {
  RcGuard& guard = *c.guard;
  if (!guard.acceptor->confirmed(bytes.first<crypto::kConfirmSize>())) return refuse(s, c);
  if (!welcome(s, guard.claimed)) return refuse(s, c);
  if (!c.problem.ok()) return gone(s, c);  // it has ended, and nothing follows this message
  StreamAddress address{guard.claimed, guard.listen_address.text(), guard.listen_port,
                        guard.acceptor->peer_key()};
  const auto known = s.by_uid_.find(guard.claimed);
  bool located = false;
  if (known != s.by_uid_.end()) {
    const RcStream::Peer& peer = s.peers_[known->second];
    // (Its key may have been learnt since the Hello, or it may have connected in another way.)
    if (peer.phase == Phase::kOpen || !guard.acceptor->fits(peer.address)) return gone(s, c);
    address.aggregator = peer.address.aggregator;
    located = !peer.address.host.empty();
  }
  const PeerId id = known == s.by_uid_.end() ? s.new_peer(address, &guard.from)
                    : located                ? known->second
                                             : s.add_peer(address);
  RcStream::Peer& peer = s.peers_[id];
  if (peer.connection != nullptr) {
    ++s.stats_.yielded;
    s.retire(*peer.connection);
  }
  peer.connection = &c;
  peer.confirms = 0;
  c.peer = id;
  if (!begin_records(s, c, guard.acceptor->chains())) return;
  // The connector sends no frame before this message shows that it was let in.
  ++s.stats_.credit_messages;
  c.problem = c.send_message({Kind::kCredit, Channel::kControl, false, 0, 0}, {}, true);
  s.established(c);
}

void RcGuardedHandshake::on_ack(RcStream& s, Connection& c, ConstBytes bytes) {
  RcStream::Peer& peer = s.peers_[c.peer];
  if (peer.connection != &c) return s.retire(c);
  if (bytes.size() != crypto::kGuardedAckSize) {
    return failed(s, c,
                  Status(Code::kPeerLost, handshake_error_text(crypto::HandshakeError::kMac)));
  }
  crypto::ConfirmBytes confirm;
  const auto ack = c.guard->connector->on_ack(bytes.first<crypto::kGuardedAckSize>(), confirm);
  if (!ack.ok()) return failed(s, c, ack.status());
  if (!*ack || (*ack)->uid != peer.address.uid) {
    return s.fail_peer(c.peer,
                       Status(Code::kPeerLost, s.text(c.peer) + " is not the expected process"));
  }
  if ((*ack)->verdict == Verdict::kYield) {
    ++s.stats_.yielded;
    peer.connection = nullptr;
    peer.phase = Phase::kYielded;
    s.timers_.touch();
    return s.retire(c);
  }
  if (Status status = c.send_plain(confirm); !status.ok()) {
    return s.attempt_failed(c.peer, status);
  }
  // It is open with the acceptor's first record (in_doubt()).
  (void)begin_records(s, c, c.guard->connector->chains());
}

bool RcGuardedHandshake::in_doubt(const Connection& c) {
  return c.guard && c.state == State::kHandshake && c.guard->awaits == Awaits::kRecords;
}

bool RcGuardedHandshake::begin_records(RcStream& s, Connection& c, crypto::StreamChains chains) {
  const Status status = c.guard->records.start(std::move(chains), s.options_.identity->limits);
  if (!status.ok()) {
    s.fail_peer(c.peer, status);
    return false;
  }
  c.guard->awaits = Awaits::kRecords;
  c.guard->acceptor.reset();
  c.guard->connector.reset();
  return true;
}

bool RcGuardedHandshake::open(RcStream& s, Connection& c, ConstBytes& bytes) {
  if (const auto body = c.guard->open(bytes)) {
    bytes = *body;
    return true;
  }
  ++s.stats_.protocol_violations;
  const StreamAddress& its = s.peers_[c.peer].address;
  const auto at = IpAddress::parse(its.host);
  s.refusals_.note(Cause::forged, at ? Source{{*at, its.port}} : Source{});
  s.fail_peer(c.peer, guarded::record_forged(s.text(c.peer)));
  return false;
}

void RcGuardedHandshake::on_event(RcStream& s, Connection& c, const CmEvent& event) {
  if (event.type == RDMA_CM_EVENT_ESTABLISHED) return;
  // (Its completions may still be read: drain() retires it.)
  if (c.problem.ok()) c.problem = Status(Code::kClosed, cm_event_text(event));
  s.timers_.touch();
}

void RcGuardedHandshake::refuse(RcStream& s, Connection& c) {
  s.refusals_.note(Cause::hello_refused, c.guard->from);
  gone(s, c);
}

void RcGuardedHandshake::gone(RcStream& s, Connection& c) {
  const uint32_t serial = c.serial();
  const auto known = s.by_uid_.find(c.guard->claimed);
  s.retire(c);
  if (known == s.by_uid_.end()) return;
  RcStream::Peer& peer = s.peers_[known->second];
  if (peer.phase != Phase::kYielded || peer.confirms != serial) return;
  peer.confirms = 0;
  if (peer.address.host.empty()) {  // expected, address unknown: it connects again
    peer.phase = Phase::kIdle;
    peer.since = kNever;
    return;
  }
  s.attempt_failed(known->second,
                   Status(Code::kPeerLost, "it connected, but did not prove that it is the peer"));
}

// A connector that was accepted has proved the secret, and may be stopped or busy for a while. Half
// of the limit: the rest is left for an attempt of our own.
Nanos RcGuardedHandshake::patience(const RcStream& s, const Connection& c) {
  return c.guard->awaits == Awaits::kConfirm ? s.options_.liveness_limit / 2 : guarded::kPatience;
}

void RcGuardedHandshake::run_timers(RcStream& s, Nanos now, bool away) {
  std::vector<Connection*> late;
  for (const auto& [serial, c] : s.connections_) {
    if (c->state != State::kHalfOpen) continue;
    Nanos& since = c->guard->since;
    // (Requests arrive at any time, also while a join waits: the endpoint's clock may be far
    // behind.)
    if (away || since == kNever) since = now;
    if (now - since >= patience(s, *c)) {
      late.push_back(c.get());
    } else {
      s.timers_.add(since + patience(s, *c));
    }
  }
  for (Connection* c : late) {
    if (c->guard->awaits != Awaits::kEnd) {
      s.refusals_.note(Cause::hello_timeouts, c->guard->from);
    }
    gone(s, *c);
  }
}

}  // namespace mcast::verbs
