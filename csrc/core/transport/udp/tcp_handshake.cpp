// Makes the connections of a TcpStream.
//
// The connector sends a Hello and waits for the reply; the acceptor checks magic, version and uid
// before the connection is bound to a peer, so unauthenticated bytes cost a bounded amount of
// memory and time (half_open.h). A peer that was not added is a guest (transport/guests.h): guests
// are bounded too, and forgotten with their last connection. If both sides connect at once, the
// side with the lower uid insists: it replies "yield" to the other's Hello, while the other side
// drops its own attempt when it sees the Hello. This holds only once a side has written its own
// Hello. Before that the attempt is unknown to the peer, and an incoming connection is accepted; so
// a link through which only one direction can connect works too.
//
// A refused or broken attempt is repeated with growing pauses for the liveness limit, or for the
// time set by keep_trying(); then the peer is reported down. The reason is that a host may become
// reachable late (a pod network that is programmed after the process has started, a firewall that
// reloads). If descriptors have run out, the soft limit is raised as far as the hard one allows;
// beyond that the attempt counts as failed. send() has no clock, so deadlines are set by the next
// poll().
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/accept.h"
#include "base/descriptors.h"
#include "base/random.h"
#include "base/socket_address.h"
#include "transport/guarded/handshake.h"
#include "transport/udp/tcp_guarded_handshake.h"
#include "transport/udp/tcp_stream.h"

namespace mcast {
namespace {

constexpr Nanos kFirstBackoff = 10 * kMilli;
constexpr Nanos kLastBackoff = 200 * kMilli;
constexpr uint64_t kMoreDescriptors = 256;  // requested when none is left
constexpr Nanos kWarnAfter = 2 * kSecond;   // of failing attempts

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

// Another process may be at the peer's address, but its host was reached.
bool host_answered(int error) {
  return error == ECONNREFUSED || error == ECONNRESET || error == EPROTO || error == EPIPE ||
         error == TcpGuardedHandshake::kNoWord;
}

bool on_loopback(const StreamAddress& peer) {
  const auto endpoints = stripe_endpoints(peer);
  return endpoints.ok() && endpoints->front().address.loopback();
}

// Returns an empty text if both ends are on loopback, where no interface can be wrong.
std::string from_text(const Interface& interface, const StreamAddress& to) {
  if (on_loopback(to)) return "";
  return " from " + interface.address.text() + " (" + interface.name + ")";
}

// Peers only see silence, so only this log line can tell the reason.
void warn_of_limits(RateLimit& limit, Nanos now, int error) {
  if (!limit.allow(now)) return;
  log(LogLevel::kWarn, "cannot open another connection: %s; %s", std::strerror(error),
      descriptor_text().c_str());
}

}  // namespace

Status TcpStream::open(const UdpTransportOptions& options, std::span<const Interface> stripe,
                       const Interface& loopback) {
  options_ = options;
  stripe_.assign(stripe.begin(), stripe.end());
  if (stripe_.size() > kMaxStripe) {
    return Status(Code::kInvalidArgument, "a lane cannot be striped over more than " +
                                              std::to_string(kMaxStripe) + " interfaces");
  }
  scratch_ = std::make_unique<std::byte[]>(kScratchSize + (options_.identity ? kOpenedSize : 0));
  while (uid_ == 0) uid_ = secure_random64();
  Status status = epoll_.open();
  return status.ok() ? listeners_.open(stripe_, loopback, options_.ports) : status;
}

void TcpStream::connect_link(PeerId id, size_t line) {
  const size_t stripe = line / kChannels;
  auto endpoints = stripe_endpoints(peers_[id].address);
  if (!endpoints.ok()) return fail_peer(id, endpoints.status());
  const Endpoint to = (*endpoints)[stripe];
  auto fd = open_socket(SOCK_STREAM, to.address);
  if (!fd.ok() && errno == EMFILE && make_descriptor_room(kMoreDescriptors)) {
    fd = open_socket(SOCK_STREAM, to.address);
  }
  if (!fd.ok()) {
    const int error = errno;
    warn_of_limits(warnings_.limits, now_, error);
    return attempt_failed(id, line, error);
  }
  TcpConnection::configure(fd->get(), to.address, options_, stripe_.size());
  // Leave by the address at which this end listens for such peers: the peer may connect to it.
  const Endpoint& listens = listeners_.at(stripe, to.address.loopback());
  if (to.address.loopback() || !listens.address.loopback()) {
    (void)set_option(fd->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "");
    if (bind_to(fd->get(), {listens.address, 0}) != 0) return attempt_failed(id, line, errno);
  }
  const bool at_once = connect_to(fd->get(), to) == 0;
  if (!at_once && errno != EINPROGRESS) return attempt_failed(id, line, errno);
  TcpConnection* c = pool_.add(std::move(fd.value()), TcpConnection::State::kConnecting, EPOLLOUT);
  if (c == nullptr) return attempt_failed(id, line, ENOMEM);
  timers_.touch();
  c->peer = id;
  c->channel = static_cast<Channel>(line % kChannels);
  c->stripe = static_cast<uint8_t>(stripe);
  c->numbered = c->channel != Channel::kControl && peers_[id].stripes > 1;
  Link& link = link_of(*c);
  link.phase = Phase::kAttempt;
  link.connection = c;
  if (at_once) say_hello(*c);
}

void TcpStream::attempt_failed(PeerId id, size_t line, int error) {
  Link& link = peers_[id].links[line];
  if (link.connection != nullptr) pool_.retire(*link.connection);
  link.connection = nullptr;
  link.phase = Phase::kRetry;
  link.error = error;
  link.backoff = std::clamp(link.backoff * 2, kFirstBackoff, kLastBackoff);
  link.deadline_set = false;
  timers_.touch();
  ++stats_.connect_retries;
}

void TcpStream::say_hello(TcpConnection& c) {
  Hello hello;
  hello.channel = c.channel;
  hello.stripe = c.stripe;
  hello.stripes = static_cast<uint8_t>(peers_[c.peer].stripes);
  hello.source = uid_;
  hello.target = peers_[c.peer].address.uid;
  hello.listen_port = listeners_.at(c.stripe, on_loopback(peers_[c.peer].address)).port;
  if (options_.identity) {  // the acceptor sends the first message
    c.guard = std::make_unique<TcpGuard>();
    c.guard->connector.emplace(*options_.identity, peers_[c.peer].address, encode(hello));
    c.state = TcpConnection::State::kChallenge;
    return c.want(EPOLLIN);
  }
  if (!c.write_message(encode(hello))) return attempt_failed(c, c.error);
  c.state = TcpConnection::State::kHelloSent;
  c.want(EPOLLIN);
}

void TcpStream::on_hello_ack(TcpConnection& c) {
  const auto io = c.read_exactly(c.guard ? crypto::kGuardedAckSize : kHelloAckSize);
  if (io == TcpConnection::Io::kAgain) return;
  if (io != TcpConnection::Io::kOk) {
    return attempt_failed(c, c.error != 0 ? c.error : ECONNRESET);
  }
  const std::span<const std::byte, kHelloAckSize> bytes(c.partial.data(), kHelloAckSize);
  const auto ack = c.guard ? TcpGuardedHandshake::check_ack(*this, c) : decode_hello_ack(bytes);
  if (c.state == TcpConnection::State::kDead) return;
  if (!ack || ack->uid != peers_[c.peer].address.uid || ack->channel != c.channel) {
    ++stats_.hello_refused;
    return attempt_failed(c, EPROTO);
  }
  if (ack->verdict == Verdict::kAccepted) return adopt(c);
  ++stats_.yielded;
  Link& link = link_of(c);
  pool_.retire(c);
  link.connection = nullptr;
  link.phase = Phase::kYielded;
  link.deadline_set = false;
  timers_.touch();
}

void TcpStream::on_hello(HalfOpen::Place& place) {
  const auto io = half_open_.read(place);
  if (io == HalfOpen::Io::kAgain) return;
  // Closed before the first byte: the peer gave the attempt up. A partial Hello is garbage.
  if (io == HalfOpen::Io::kSilent) return half_open_.reset(place);
  if (io == HalfOpen::Io::kComplete) {
    if (options_.identity) return TcpGuardedHandshake::on_message(*this, place);
    const auto hello = decode_hello(std::span<const std::byte>(place.bytes).first<kHelloSize>());
    if (hello && hello->is_for(uid_, stripe_.size())) return accept_hello(place, *hello);
  }
  refusals_.note(Cause::hello_refused, place.from);
  half_open_.reset(place);
}

// Makes a guest of a peer that nobody has added. If there are too many, one of them is displaced.
PeerId TcpStream::new_guest(const Hello& hello, Source from) {
  if (guests_.full()) {
    const Guests::Guest other = guests_.to_displace();
    refusals_.note(Cause::crowded_out, Source{{other.from, 0}});
    fail_peer(other.id, Status(Code::kPeerLost, "other connections took its place"));
  }
  const PeerId id = new_peer({hello.source, from.address.text(), hello.listen_port});
  peers_[id].stranger = true;
  guests_.enter(id, from.address);
  return id;
}

void TcpStream::accept_hello(HalfOpen::Place& place, const Hello& hello) {
  const auto known = by_uid_.find(hello.source);
  PeerId id = known == by_uid_.end() ? kNoPeer : known->second;
  if (id == kNoPeer ? !guests_.welcome() : peers_[id].down) {
    refusals_.note(Cause::hello_refused, place.from);
    return half_open_.reset(place);
  }
  if (id == kNoPeer) {
    id = new_guest(hello, place.from);
  } else if (peers_[id].address.host.empty()) {  // an expected peer
    add_peer({hello.source, place.from.address.text(), hello.listen_port});
  }
  const bool numbered = hello.channel != Channel::kControl && hello.stripes > 1;
  Link& link = peers_[id].links[line_of(hello.channel, hello.stripe)];
  const bool yield = link.stays(uid_, hello.source);
  Fd fd = half_open_.release(place);
  const auto ack =
      encode(HelloAck{yield ? Verdict::kYield : Verdict::kAccepted, hello.channel, uid_});
  // The buffer of a fresh socket always has the room.
  const bool said = ::send(fd.get(), ack.data(), ack.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(ack.size());
  TcpConnection* const c = said && !yield
                               ? pool_.add(std::move(fd), TcpConnection::State::kHelloSent, EPOLLIN)
                               : nullptr;
  if (c == nullptr) {
    // A stranger without a connection would stay permanently.
    const auto& links = peers_[id].links;
    const bool connected = std::any_of(links.begin(), links.end(),
                                       [](const Link& l) { return l.phase == Phase::kOpen; });
    if (peers_[id].stranger && !connected) fail_peer(id, Status(Code::kPeerLost, "it went away"));
    return;
  }
  c->peer = id;
  c->channel = hello.channel;
  c->stripe = hello.stripe;
  c->numbered = numbered;
  if (link.connection != nullptr) {
    ++stats_.yielded;
    pool_.retire(*link.connection);
  }
  adopt(*c);
}

void TcpStream::adopt(TcpConnection& c) {
  c.state = TcpConnection::State::kOpen;
  c.partial.clear();
  Link& link = link_of(c);
  link.phase = Phase::kOpen;
  link.connection = &c;
  link.trying_since = kNever;
  link.warned = false;
  link.backoff = 0;
  link.awaits_confirm = false;
  peers_[c.peer].met = true;
  ++stats_.connections_opened;
  if (closing_ && !link.goodbye_queued) {
    link.queue.append(encode_prefix(kGoodbyeLength));
    link.goodbye_queued = true;
  }
  flush(c);
}

void TcpStream::accept_all(const TcpListeners::Listener& listener) {
  for (size_t n = 0; n < kAcceptsPerPoll; ++n) {
    Accepted next = accept_connection(listener.fd.get(), kMoreDescriptors);
    Fd& fd = next.fd;
    if (!fd.valid()) {
      if (next.error == 0) return;
      ++stats_.accept_errors;
      warn_of_limits(warnings_.limits, now_, next.error);
      return listeners_.pause(now_ + kAcceptPause);
    }
    const Source from{next.from};
    if (allow_ != nullptr && !allow_->passes(from.address)) {
      refusals_.note(Cause::not_allowed, from);
      reset_connection(std::move(fd));
      continue;
    }
    TcpConnection::configure(fd.get(), from.address, options_, stripe_.size());
    Source displaced;
    HalfOpen::Place* const place = half_open_.admit(std::move(fd), from, now_, displaced);
    if (displaced.address.known()) refusals_.note(Cause::crowded_out, displaced);
    if (place == nullptr) continue;
    timers_.touch();
    if (options_.identity && !TcpGuardedHandshake::challenge(*this, *place)) {
      half_open_.reset(*place);
      continue;
    }
    on_hello(*place);  // the Hello is usually there already
  }
}

void TcpStream::run_timers(Nanos now) {
  const bool away = timers_.away(now, options_.liveness_limit);
  timers_.restart();
  half_open_.expire(now, away, [this](HalfOpen::Place& place) {
    refusals_.note(Cause::hello_timeouts, place.from);
    half_open_.reset(place);
  });
  timers_.add(half_open_.next());
  if (away) {
    for (Peer& peer : peers_) {
      for (Link& link : peer.links) link.deadline_set = false, link.trying_since = kNever;
    }
  }
  std::vector<TcpConnection*> expired;
  for (const auto& c : pool_.live()) {
    if (c->state == TcpConnection::State::kOpen) continue;
    // Applies to a Challenge too, though an endpoint without security never sends one: modes were
    // compared before, so a silent peer has most likely been stopped.
    const Nanos until =
        peers_[c->peer].give_up_at(line_of(c->channel, c->stripe), options_.liveness_limit, now);
    if (now >= until) {
      expired.push_back(c.get());
    } else {
      timers_.add(until);
    }
  }
  for (TcpConnection* c : expired) {
    if (c->state == TcpConnection::State::kDead) continue;
    if (c->state == TcpConnection::State::kChallenge) {
      TcpGuardedHandshake::no_challenge(*this, *c);
      continue;
    }
    const Peer& peer = peers_[c->peer];
    // Not even the peer's kernel has replied.
    const bool silent = c->state == TcpConnection::State::kConnecting;
    fail_peer(c->peer, Status(silent && !peer.met ? Code::kUnavailable : Code::kPeerLost,
                              endpoint_text(peer.address, c->stripe) +
                                  " did not answer a connection attempt" +
                                  (silent ? from_text(stripe_[c->stripe], peer.address) : "") +
                                  " (its log tells if it is out of descriptors)"));
  }
  for (PeerId id = 0; id < peers_.size(); ++id) {
    for (size_t line = 0; line < peers_[id].links.size() && !peers_[id].down; ++line) {
      run_link_timer(id, line, now);
    }
  }
  listeners_.look(now);
}

void TcpStream::keep_trying(PeerId peer, Nanos until) {
  peers_[peer].keep_trying = until;
  timers_.touch();
}

Nanos TcpStream::Peer::give_up_at(size_t line, Nanos liveness_limit, Nanos now) {
  Link& link = links[line];
  if (link.trying_since == kNever) link.trying_since = now;
  return std::max(link.trying_since + liveness_limit, keep_trying);
}

void TcpStream::run_link_timer(PeerId id, size_t line, Nanos now) {
  Link& link = peers_[id].links[line];
  if (link.phase != Phase::kRetry && link.phase != Phase::kYielded) return;
  const bool retry = link.phase == Phase::kRetry;
  const Nanos give_up = peers_[id].give_up_at(line, options_.liveness_limit, now);
  if (!link.deadline_set) {
    link.deadline = retry                 ? std::min(now + link.backoff, give_up)
                    : link.awaits_confirm ? now + HalfOpen::kPatience
                                          : give_up;
    link.deadline_set = true;
    if (retry) warn_of_failing(id, line, now);
  }
  if (now < link.deadline) {
    timers_.add(link.deadline);
    return;
  }
  if (link.awaits_confirm) {  // the other end has not proved that it is the peer
    link.awaits_confirm = false;
    if (!peers_[id].address.host.empty()) return attempt_failed(id, line, ECONNRESET);
    link.phase = Phase::kIdle;  // expected, address unknown: it connects again
    link.trying_since = kNever;
    return;
  }
  if (retry && now < give_up) {
    connect_link(id, line);
    return;
  }
  if (!retry) {
    const std::string who = endpoint_text(peers_[id].address, line / kChannels);
    return fail_peer(id, Status(Code::kPeerLost, who + " announced a connection that never came"));
  }
  const std::string text = peers_[id].connect_error(line, stripe_);
  if (!out_of_descriptors(link.error)) {
    const bool unreached = !peers_[id].met && !host_answered(link.error);
    return fail_peer(id, Status(unreached ? Code::kUnavailable : Code::kPeerLost, text));
  }
  fail_peer(id, Status(Code::kResourceExhausted, text + "; " + descriptor_text()));
}

std::string TcpStream::Peer::connect_error(size_t line, std::span<const Interface> stripe) const {
  const int error = links[line].error;
  const size_t at = line / kChannels;
  return "cannot connect to " + endpoint_text(address, at) + from_text(stripe[at], address) + ": " +
         (error == TcpGuardedHandshake::kNoWord ? guarded::no_challenge().message()
                                                : std::strerror(error));
}

// Until the peer is reported down, only this warning explains why the group makes no progress.
void TcpStream::warn_of_failing(PeerId id, size_t line, Nanos now) {
  Link& link = peers_[id].links[line];
  const Nanos failing = now - link.trying_since;
  if (link.warned || failing < kWarnAfter || out_of_descriptors(link.error)) return;
  link.warned = true;
  if (!warnings_.failing.allow(now)) return;
  log(LogLevel::kWarn, "%s, for %s; trying for %s more",
      peers_[id].connect_error(line, stripe_).c_str(), seconds_text(failing).c_str(),
      seconds_text(peers_[id].give_up_at(line, options_.liveness_limit, now) - now).c_str());
}

}  // namespace mcast
