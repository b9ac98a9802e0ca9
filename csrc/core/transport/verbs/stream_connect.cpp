// Makes the connections. The first send to a peer resolves its address and route and connects; the
// Hello is part of the request. If both sides connect at once, the one with the lower uid keeps its
// own connection: it refuses the other's request with the reason that its own is coming, and the
// side with the higher uid gives its attempt up when it accepts. Refusals and time-outs (no reply
// for the address, the route or the request) are tried again with growing pauses until the liveness
// limit, or for the time set by keep_trying().
#include <algorithm>

#include "transport/udp/socket.h"
#include "transport/verbs/rc_guarded_handshake.h"
#include "transport/verbs/stream.h"

namespace mcast::verbs {
namespace {

constexpr Nanos kFirstBackoff = 10 * kMilli, kLastBackoff = 200 * kMilli;

// Time limit of resolving an address or a route, so that several attempts fit into the liveness
// limit.
int resolve_ms(Nanos liveness_limit) {
  return static_cast<int>(std::clamp<Nanos>(liveness_limit / 4 / kMilli, 1, 2000));
}

}  // namespace

Connection* RcStream::make_connection(PeerId peer, Connection::State state) {
  const uint32_t serial = next_serial_++;
  auto made = std::make_unique<Connection>(static_cast<Connection::Owner&>(*this), cm_, device_,
                                           stats_, serial);
  made->peer = peer;
  made->state = state;
  Connection* const c = made.get();
  connections_[serial] = std::move(made);
  return c;
}

// The object is freed at the end of the current poll: callers up the stack may still use it.
void RcStream::retire(Connection& c) {
  const auto it = connections_.find(c.serial());
  if (it == connections_.end()) return;
  for (uint64_t entry = 0; entry < kReads; ++entry)
    reads_.erase(uint64_t{c.serial()} << 32 | entry);
  using State = Connection::State;
  if (c.state == State::kOpen || c.state == State::kHandshake || c.state == State::kHalfOpen) {
    c.disconnect();
  }
  c.state = Connection::State::kDead;
  graveyard_.push_back(std::move(it->second));
  connections_.erase(it);
}

// If a queue overruns, it is broken with all its connections, so each has room for all completions
// that its connections can cause.
Result<std::shared_ptr<CompletionQueue>> RcStream::queue_with_room() {
  // Twice the room, because retired connections may leave completions behind.
  constexpr size_t kRoom = 2 * kCompletions;
  for (const auto& queue : queues_) {
    const auto connections = static_cast<size_t>(queue.use_count()) - 1;
    if ((connections + 1) * kRoom <= queue->depth()) return queue;
  }
  auto queue = std::make_shared<CompletionQueue>(device_);
  const auto most = static_cast<size_t>(std::max(1, device_.attr().max_cqe));
  const size_t depth = std::min(most, kConnectionsPerQueue * kRoom);
  if (Status s = queue->open(static_cast<int>(depth), "connections"); !s.ok()) return s;
  queues_.push_back(queue);
  return queue;
}

void RcStream::start(PeerId id) {
  Peer& peer = peers_[id];
  peer.timed = peer.since != kNever;
  timers_.touch();
  peer.phase = Phase::kAttempt;
  const auto to = IpAddress::parse(peer.address.host);
  if (!to || !to->is_v4()) {
    fail_peer(id, Status(Code::kInvalidArgument,
                         "not an IPv4 address, which verbs needs: \"" + peer.address.host + "\""));
    return;
  }
  Connection* const c = make_connection(id, Connection::State::kResolvingAddress);
  peer.connection = c;
  const Endpoint target{*to, peer.address.port};
  if (Status s = c->resolve(listener_.at, target, resolve_ms(options_.liveness_limit)); !s.ok()) {
    attempt_failed(id, s);
  }
}

void RcStream::attempt_failed(PeerId id, Status why) {
  Peer& peer = peers_[id];
  if (peer.connection != nullptr) retire(*peer.connection);
  peer.connection = nullptr;
  peer.last = std::move(why);
  ++stats_.connect_retries;
  peer.phase = Phase::kRetry;
  peer.backoff = peer.backoff == 0 ? kFirstBackoff : std::min(2 * peer.backoff, kLastBackoff);
  peer.timed = false;
  timers_.touch();
}

void RcStream::run_timers(Nanos now) {
  const bool away = timers_.away(now, options_.liveness_limit);
  timers_.restart();
  if (options_.identity) RcGuardedHandshake::run_timers(*this, now, away);
  for (PeerId id = 0; id < peers_.size(); ++id) {
    Peer& peer = peers_[id];
    if (away) peer.since = kNever;
    if (peer.phase == Phase::kIdle || peer.phase == Phase::kOpen || peer.phase == Phase::kEnded) {
      continue;
    }
    if (peer.since == kNever) peer.since = now;
    const Nanos give_up = std::max(peer.since + options_.liveness_limit, peer.keep_trying);
    if (now >= give_up) {
      std::string why = "no connection to " + text(id) + " after " + seconds_text(now - peer.since);
      if (!peer.last.ok()) why += "; the last attempt: " + peer.last.message();
      fail_peer(id, Status(Code::kPeerLost, why));
      continue;
    }
    if (!peer.timed) {
      peer.timed = true;
      peer.deadline = peer.phase == Phase::kRetry ? now + peer.backoff : kNever;
    }
    if (peer.phase == Phase::kRetry && now >= peer.deadline) start(id);
    timers_.add(give_up);
    if (peer.phase == Phase::kRetry) timers_.add(peer.deadline);
  }
}

void RcStream::keep_trying(PeerId peer, Nanos until) {
  peers_[peer].keep_trying = until;
  timers_.touch();
}

void RcStream::on_cm_event(const CmEvent& event) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    on_request(event);
  } else if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    for (PeerId id = 0; id < peers_.size(); ++id) {
      if (peers_[id].phase == Phase::kIdle) continue;
      fail_peer(id, Status(Code::kPeerLost, text(id) + ": " + cm_event_text(event)));
    }
  }
}

void RcStream::refuse(rdma_cm_id* id, Refusal reason) {
  const auto data = encode(reason);
  (void)device_.api().reject(id, data.data(), static_cast<uint8_t>(data.size()));
  id->context = nullptr;
  cm_.destroy(id);
}

void RcStream::on_request(const CmEvent& event) {
  event.id->context = nullptr;  // still the listener's handler; cleared until it is adopted
  if (options_.identity) return RcGuardedHandshake::on_request(*this, event);
  const auto hello = decode_hello(event.data);
  if (!hello || !hello->is_for(uid_)) {
    refusals_.note(Cause::hello_refused, peer_of(event.id));
    refuse(event.id, Refusal::kStranger);
    return;
  }
  const auto known = by_uid_.find(hello->source);
  if (known == by_uid_.end() && !listener_.guests.welcome()) {
    refusals_.note(Cause::hello_refused, peer_of(event.id));
    refuse(event.id, Refusal::kStranger);
    return;
  }
  const StreamAddress address{hello->source, hello->listen_address.text(), hello->listen_port};
  const Source from = peer_of(event.id);
  PeerId id = known == by_uid_.end() ? new_peer(address, &from) : known->second;
  if (peers_[id].address.host.empty()) id = add_peer(address);  // an expected peer
  Peer& peer = peers_[id];
  const bool ours_wins = peer.phase == Phase::kAttempt && uid_ < hello->source;
  if (ours_wins || peer.phase == Phase::kOpen || peer.phase == Phase::kAccepting) {
    refuse(event.id, Refusal::kYield);
    return;
  }
  // While closing down, accept only connections that we wait for: our last frames may need them.
  if (peer.phase == Phase::kEnded || (closing_ && !peer.goodbye_due)) {
    refuse(event.id, Refusal::kStranger);
    return;
  }
  if (peer.connection != nullptr) {
    ++stats_.yielded;
    retire(*peer.connection);
  }
  Connection* const c = make_connection(id, Connection::State::kAccepting);
  c->adopt(event.id);
  peer.connection = c;
  peer.phase = Phase::kAccepting;
  peer.timed = false;
  timers_.touch();
  auto queue = queue_with_room();
  Status status = queue.status();
  if (queue.ok()) status = c->prepare(*queue, options_.liveness_limit);
  if (status.ok()) status = c->accept({});
  if (!status.ok()) fail_peer(id, status.with_context("accepting " + text(id)));
}

void RcStream::on_connection_event(Connection& c, const CmEvent& event) {
  if (c.state == Connection::State::kDead) return;
  if (c.state == Connection::State::kHalfOpen) {
    return RcGuardedHandshake::on_event(*this, c, event);
  }
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      advance(c, event);
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      if (c.guard) {
        RcGuardedHandshake::on_challenge(*this, c, event.data);
      } else if (c.state != Connection::State::kOpen) {
        established(c);
      }
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
      disconnected(c);
      break;
    case RDMA_CM_EVENT_REJECTED: {
      const auto refusal = decode_refusal(event.data);
      // (A guarded acceptor yields by its Ack: this reject has proved nothing.)
      if (refusal == Refusal::kYield && !c.guard) {
        Peer& peer = peers_[c.peer];
        ++stats_.yielded;
        peer.connection = nullptr;
        peer.phase = Phase::kYielded;
        timers_.touch();
        retire(c);
      } else if (refusal == Refusal::kStranger) {
        fail_peer(c.peer, Status(Code::kPeerLost, text(c.peer) + " is not the expected process"));
      } else {
        attempt_failed(c.peer, Status(Code::kPeerLost, cm_event_text(event)));
      }
      break;
    }
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
      if (c.state == Connection::State::kOpen) break;
      attempt_failed(c.peer, Status(Code::kPeerLost, cm_event_text(event)));
      break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      fail_peer(c.peer, Status(Code::kPeerLost, text(c.peer) + ": " + cm_event_text(event)));
      break;
    default:
      break;
  }
}

void RcStream::advance(Connection& c, const CmEvent& event) {
  Status status;
  if (event.type == RDMA_CM_EVENT_ADDR_RESOLVED) {
    c.state = Connection::State::kResolvingRoute;
    status = c.resolve_route(resolve_ms(options_.liveness_limit));
  } else {
    c.state = Connection::State::kConnecting;
    auto queue = queue_with_room();
    status = queue.status();
    if (queue.ok()) status = c.prepare(*queue, options_.liveness_limit);
    const Hello hello{kCredits, uid_, peers_[c.peer].address.uid, listener_.at.address,
                      device_.api().local_port(listener_.id)};
    if (status.ok()) {
      status = options_.identity ? RcGuardedHandshake::connect(*this, c, hello)
                                 : c.connect(encode(hello));
    }
  }
  if (!status.ok()) attempt_failed(c.peer, status);
}

void RcStream::established(Connection& c) {
  Peer& peer = peers_[c.peer];
  if (peer.connection != &c) {
    retire(c);
    return;
  }
  c.state = Connection::State::kOpen;
  peer.phase = Phase::kOpen;
  peer.since = kNever;
  peer.backoff = 0;
  ++stats_.connections_opened;
  pump(c.peer);
}

void RcStream::disconnected(Connection& c) {
  const bool in_doubt = RcGuardedHandshake::in_doubt(c);
  if (c.state != Connection::State::kOpen && !in_doubt) {
    const Status why = c.state == Connection::State::kHandshake
                           ? guarded::ended_early()
                           : Status(Code::kPeerLost, "disconnected before the connection was made");
    attempt_failed(c.peer, why);
    return;
  }
  // Messages that the peer sent are in the completion queue, and may end with a goodbye: drain()
  // decides.
  if (c.problem.ok()) {
    c.problem = Status(Code::kClosed, in_doubt ? "it ended the connection before its first record"
                                               : "it closed its connection without a goodbye");
  }
  timers_.touch();
}

}  // namespace mcast::verbs
