// Sending and receiving on open connections, failure and goodbye. (tcp_handshake.cpp makes the
// connections.)
//
// A link is the (peer, channel) pair; it owns the queue of bytes to send, so the queue survives a
// change of connection before the first byte has left. send() writes immediately if the queue is
// empty; otherwise bytes leave when epoll reports room. Reads go through one scratch buffer, one
// read per ready connection and poll, so that a busy peer does not starve the others.
//
// A failed write only stops writing: bytes that the peer had sent before it went away are still
// read, and the end of its input decides between a graceful and an abrupt end. Closing down sends
// the goodbye marker and FIN on every connection and keeps reading, because closing a socket with
// unread input makes the kernel send RST, which could destroy the last bytes sent.
//
// On a stripe each frame takes the connection on which it should arrive first, and carries a
// number. A reader that finds a frame out of order leaves it, and the socket, alone until the
// frames before it have arrived by the other connections; TCP's own window stops the sender. So
// order is kept with no more memory than one read per connection.
#include "transport/udp/tcp_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/socket_address.h"
#include "transport/udp/tcp_guarded_handshake.h"

namespace mcast {
namespace {

constexpr size_t kVectors = 16;

// Address of the other end, from the kernel, not from what the peer claims.
Source remote_of(const TcpConnection& c) { return Source{peer_endpoint(c.fd())}; }

// Bytes in front of a frame of `size` bytes.
using FrameHead = std::array<std::byte, kFramePrefix + kFrameNumber>;
size_t put_head(FrameHead& head, size_t size, std::optional<uint32_t> number) {
  const size_t used = kFramePrefix + (number ? kFrameNumber : 0);
  const auto prefix = encode_prefix(static_cast<uint32_t>(used - kFramePrefix + size));
  std::copy(prefix.begin(), prefix.end(), head.begin());
  if (number) {
    const auto bytes = encode_prefix(*number);
    std::copy(bytes.begin(), bytes.end(), head.begin() + kFramePrefix);
  }
  return used;
}

}  // namespace

StreamAddress TcpStream::address(bool loopback) const {
  StreamAddress address = listeners_.address(uid_, loopback);
  if (options_.identity) address.key = options_.identity->pair.public_key();
  return address;
}

PeerId TcpStream::new_peer(const StreamAddress& address) {
  PeerId id = guests_.take_id();
  if (id == kNoPeer) {
    id = static_cast<PeerId>(peers_.size());
    peers_.emplace_back();
  }
  Peer& peer = peers_[id] = Peer();
  peer.address = address;
  peer.links.resize(kChannels * stripe_.size());
  peer.next_out.fill(options_.first_frame);
  peer.next_in.fill(options_.first_frame);
  by_uid_[address.uid] = id;
  return id;
}

PeerId TcpStream::add_peer(const StreamAddress& address) {
  const auto known = by_uid_.find(address.uid);
  const PeerId id = known != by_uid_.end() ? known->second : new_peer(address);
  Peer& peer = peers_[id];
  if (peer.stranger) guests_.leave(id);
  peer.stranger = false;
  const std::string before = endpoint_text(peer.address);
  if (!guarded::learn(peer.address, address)) fail_peer(id, guarded::two_keys(before));
  peer.stripes = std::min(stripe_count(address), stripe_.size());
  if (const auto endpoints = stripe_endpoints(address); endpoints.ok()) {
    for (const Endpoint& at : *endpoints) half_open_.add_member(at.address);
  }
  return id;
}

std::vector<PeerId> TcpStream::expect(std::span<const uint64_t> uids) {
  std::vector<PeerId> ids;
  for (const uint64_t uid : uids) ids.push_back(add_peer({.uid = uid, .host = "", .port = 0}));
  guests_.turn_away();
  return ids;
}

size_t TcpStream::queued(PeerId id, Channel channel) const {
  if (id >= peers_.size()) return 0;
  size_t bytes = 0;
  const auto& links = peers_[id].links;
  for (size_t i = static_cast<size_t>(channel); i < links.size(); i += kChannels) {
    bytes += links[i].unsent();
  }
  return bytes;
}

size_t TcpStream::choose_line(const Peer& peer, Channel channel, size_t bytes) {
  if (channel == Channel::kControl || peer.stripes < 2) return line_of(channel, 0);
  ++turn_;
  struct Load {
    size_t line;
    double waiting, rate;
  };
  std::array<Load, kMaxStripe> loads;
  double fastest = 1;
  for (size_t i = 0; i < peer.stripes; ++i) {
    const size_t line = line_of(channel, (turn_ + i) % peer.stripes);
    const Link& link = peer.links[line];
    Load& load = loads[i] = {line, static_cast<double>(link.unsent()), 0};
    if (link.phase != Phase::kOpen) continue;
    load.waiting += static_cast<double>(link.connection->unacknowledged());
    load.rate = link.connection->rate();
    fastest = std::max(fastest, load.rate);
  }
  // Estimated time at which the frame is delivered. A connection without a measured rate counts as
  // fast as the fastest; a slow one counts as at least 1/16 of it, so that it is still measured.
  const auto end = [&](const Load& load) {
    const double rate = load.rate > 0 ? std::max(load.rate, fastest / 16) : fastest;
    return (load.waiting + static_cast<double>(bytes)) / rate;
  };
  return std::min_element(loads.begin(), loads.begin() + static_cast<std::ptrdiff_t>(peer.stripes),
                          [&](const Load& a, const Load& b) { return end(a) < end(b); })
      ->line;
}

void TcpStream::send(PeerId id, Channel channel, std::span<const ConstBytes> parts) {
  if (id >= peers_.size()) return;
  Peer& peer = peers_[id];
  size_t length = 0;
  for (const ConstBytes& part : parts) length += part.size();
  const size_t line = choose_line(peer, channel, length);
  Link& link = peer.links[line];
  if (link.phase == Phase::kEnded || peer.down || closing_) {
    ++stats_.frames_dropped;
    return;
  }
  if (length == 0 || length > max_frame(channel)) {
    fail_peer(id, Status(Code::kInternal, "frame of " + std::to_string(length) + " bytes for " +
                                              endpoint_text(peers_[id].address)));
    return;
  }
  std::optional<uint32_t> number;
  if (peer.stripes > 1 && channel != Channel::kControl) {
    number = peer.next_out[static_cast<size_t>(channel)]++;
  }
  if (link.takes_sealed()) {
    link.connection->guard->age(now_);
    if (link.connection->guard->seal(number, parts)) return flush(*link.connection);
    return fail_peer(id,
                     guarded::keys_used_up(endpoint_text(peer.address, link.connection->stripe)));
  }
  FrameHead head;
  const size_t head_size = put_head(head, length, number);
  size_t taken = 0;
  if (link.phase == Phase::kOpen && link.queue.empty() && parts.size() < kVectors &&
      link.connection->guard == nullptr) {
    if (link.connection->write_broken) {
      ++stats_.frames_dropped;
      return;
    }
    std::array<iovec, kVectors> vectors;
    size_t used = 0;
    vectors[used++] = {head.data(), head_size};
    for (const ConstBytes& part : parts) {
      vectors[used++] = {const_cast<std::byte*>(part.data()), part.size()};
    }
    taken = link.connection->write({vectors.data(), used});
    if (link.connection->write_broken || taken == head_size + length) return;
  }
  const auto keep = [&](ConstBytes bytes) {
    const size_t skip = std::min(taken, bytes.size());
    taken -= skip;
    link.queue.append(bytes.subspan(skip));
  };
  keep({head.data(), head_size});
  for (const ConstBytes& part : parts) keep(part);
  if (link.phase == Phase::kIdle) connect_link(id, line);
  if (link.phase != Phase::kOpen) return;
  if (link.connection->guard != nullptr) return flush(*link.connection);
  link.connection->want(link.interest());
}

size_t TcpStream::poll(StreamSink& sink, Nanos now) {
  now_ = now;
  std::array<epoll_event, 64> ready;
  const size_t n = epoll_.wait(ready, 0);
  size_t events = n;
  for (size_t i = 0; i < n; ++i) {
    void* const tag = ready[i].data.ptr;
    if (const TcpListeners::Listener* const listener = listeners_.find(tag)) {
      accept_all(*listener);
    } else if (half_open_.owns(tag)) {
      if (HalfOpen::Place* const place = half_open_.find(tag)) on_hello(*place);
    } else {
      service(*static_cast<TcpConnection*>(tag), ready[i].events, sink, events);
    }
  }
  if (timers_.due(now) || listeners_.paused()) run_timers(now);
  // A sink may send, and so add to the list.
  for (size_t i = 0; i < reports_.size(); ++i) {
    const Report report = reports_[i];
    if (report.stranger) {
      sink.on_stranger_gone(report.peer);
      guests_.give_back(report.peer);
    } else {
      sink.on_peer_down(report.peer, report.why, report.graceful);
    }
    ++events;
  }
  reports_.clear();
  refusals_.tell(sink);
  pool_.bury();
  return events;
}

void TcpStream::service(TcpConnection& c, uint32_t ready, StreamSink& sink, size_t& events) {
  using State = TcpConnection::State;
  switch (c.state) {
    case State::kDead:
      return;
    case State::kConnecting: {
      if (const int error = pending_error(c.fd()); error != 0) {
        attempt_failed(c, error);
      } else if ((ready & EPOLLOUT) != 0) {
        say_hello(c);
      }
      return;
    }
    case State::kChallenge:
      return TcpGuardedHandshake::on_challenge(*this, c);
    case State::kHelloSent:
      return on_hello_ack(c);
    case State::kOpen:
      break;
  }
  if (c.read_done) {
    // Only the last bytes sent are still on their way.
    if ((ready & (EPOLLERR | EPOLLHUP)) != 0) {
      end_link(c);
    } else {
      flush(c);
    }
    return;
  }
  if (!c.held && (ready & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) read(c, sink, events);
  if (c.state == State::kOpen && (ready & EPOLLOUT) != 0) flush(c);
}

FrameTake TcpStream::deliver(TcpConnection& c, ConstBytes frame, StreamSink& sink, size_t& events) {
  if (c.goodbye) return kTakeStop;
  if (c.numbered) {
    if (frame.size() <= kFrameNumber) return kTakeStop;
    uint32_t& next = peers_[c.peer].next_in[static_cast<size_t>(c.channel)];
    const auto ahead = static_cast<int32_t>(decode_prefix(frame.data()) - next);
    if (ahead != 0) return ahead > 0 ? kTakeHold : kTakeStop;  // one that has been delivered
    ++next;
    frame = frame.subspan(kFrameNumber);
  }
  ++events;
  sink.on_frame(c.peer, c.channel, frame);
  return c.state == TcpConnection::State::kOpen ? kTakeMore : kTakeStop;
}

struct TcpStream::Taker {
  TcpStream& stream;
  TcpConnection& c;
  StreamSink& sink;
  size_t& events;

  FrameTake operator()(ConstBytes frame) const { return stream.deliver(c, frame, sink, events); }
  // On a stripe: returns true if this frame need not wait for others.
  bool its_turn(uint32_t number) const {
    const uint32_t next = stream.peers_[c.peer].next_in[static_cast<size_t>(c.channel)];
    return static_cast<int32_t>(number - next) <= 0;
  }
  Bytes room() const { return {stream.scratch_.get() + kScratchSize, kOpenedSize}; }
};

void TcpStream::read(TcpConnection& c, StreamSink& sink, size_t& events) {
  FrameScan scan;
  const size_t before = events;
  const auto io =
      c.read_frames({scratch_.get(), kScratchSize}, Taker{*this, c, sink, events}, scan);
  if (c.state != TcpConnection::State::kOpen || io == TcpConnection::Io::kAgain) return;
  if (io != TcpConnection::Io::kOk) return input_ended(c, io);
  after_scan(c, scan);
  if (c.numbered && events > before) resume_held(c.peer, c.channel, sink, events);
}

// Runs after all frames of a scan, unless the connection ended meanwhile.
void TcpStream::after_scan(TcpConnection& c, const FrameScan& scan) {
  using End = FrameScan::End;
  const bool after_goodbye = c.goodbye;
  if (scan.end == End::kForged) {
    ++stats_.protocol_violations;
    refusals_.note(Cause::forged, remote_of(c));
    return fail_peer(c.peer,
                     guarded::record_forged(endpoint_text(peers_[c.peer].address, c.stripe)));
  }
  if (after_goodbye || scan.end == End::kViolation || scan.end == End::kStopped) {
    ++stats_.protocol_violations;
    refusals_.note(Cause::malformed, remote_of(c));
    const std::string what = after_goodbye || scan.bad_length == kGoodbyeLength
                                 ? " sent data after its goodbye"
                                 : " sent a frame of " + std::to_string(scan.bad_length) +
                                       " bytes (allowed: 1 to " +
                                       std::to_string(max_frame(c.channel)) + ")";
    fail_peer(c.peer,
              Status(Code::kPeerLost, endpoint_text(peers_[c.peer].address, c.stripe) + what));
    return;
  }
  c.goodbye = scan.end == End::kGoodbye;
  if (c.numbered) c.want(link_of(c).interest());
}

void TcpStream::resume_held(PeerId id, Channel channel, StreamSink& sink, size_t& events) {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stripe = 0; stripe < stripe_.size(); ++stripe) {
      TcpConnection* const c = peers_[id].links[line_of(channel, stripe)].connection;
      if (c == nullptr || !c->held) continue;
      const size_t before = events;
      FrameScan scan;
      c->read_held(Taker{*this, *c, sink, events}, scan);
      if (c->state != TcpConnection::State::kOpen) return;  // the peer may have failed with it
      after_scan(*c, scan);
      moved = moved || events > before;
    }
  }
}

void TcpStream::input_ended(TcpConnection& c, TcpConnection::Io how) {
  if (c.goodbye) {
    c.read_done = true;
    // While closing down, our last bytes are still sent; the peer reads until our FIN.
    if (closing_ && how == TcpConnection::Io::kEof && !c.fin_sent && !c.write_broken) {
      flush(c);
    } else {
      end_link(c);
    }
    return;
  }
  // The reply to our goodbye on this channel; others may still have bytes to deliver.
  if (closing_ && c.fin_sent && how == TcpConnection::Io::kEof) return end_link(c);
  const std::string who = endpoint_text(peers_[c.peer].address, c.stripe);
  const std::string where = c.partial.empty() ? "" : " in the middle of a frame";
  if (c.error != 0) {
    fail_peer(c.peer, Status(Code::kPeerLost, "connection to " + who + " broke" + where + ": " +
                                                  std::strerror(c.error)));
  } else {
    fail_peer(c.peer,
              Status(Code::kPeerLost, who + " closed its connection without a goodbye" + where));
  }
}

void TcpStream::flush(TcpConnection& c) {
  Link& link = link_of(c);
  if (c.guard != nullptr && !c.write_sealed(link.queue)) {
    return fail_peer(c.peer,
                     guarded::keys_used_up(endpoint_text(peers_[c.peer].address, c.stripe)));
  }
  while (c.guard == nullptr && !link.queue.empty() && !c.write_broken) {
    std::array<iovec, kVectors> vectors;
    const size_t used = link.queue.front(vectors);
    size_t offered = 0;
    for (size_t i = 0; i < used; ++i) offered += vectors[i].iov_len;
    const size_t taken = c.write({vectors.data(), used});
    link.queue.consume(taken);
    if (taken < offered) break;
  }
  if (c.write_broken) link.queue.clear();
  if (link.goodbye_queued && link.unsent() == 0 && !c.fin_sent && !c.write_broken) {
    (void)::shutdown(c.fd(), SHUT_WR);
    c.fin_sent = true;
  }
  if (c.read_done && (c.fin_sent || c.write_broken)) {
    end_link(c);
    return;
  }
  c.want(link_of(c).interest());
}

void TcpStream::end_link(TcpConnection& c) {
  const PeerId id = c.peer;
  Link& link = link_of(c);
  pool_.retire(c);
  link.connection = nullptr;
  link.phase = Phase::kEnded;
  link.queue.clear();
  for (const Link& other : peers_[id].links) {
    if (other.phase == Phase::kOpen) return;
  }
  fail_peer(id, Status(Code::kClosed, endpoint_text(peers_[id].address) + " said goodbye"), true);
}

void TcpStream::fail_peer(PeerId id, Status why, bool graceful) {
  Peer& peer = peers_[id];
  if (peer.down) return;
  peer.down = true;
  for (Link& link : peer.links) {
    if (link.connection != nullptr) pool_.retire(*link.connection);
    link.connection = nullptr;
    link.phase = Phase::kEnded;
    link.queue.clear();
  }
  reports_.push_back({id, std::move(why), graceful, peer.stranger});
  if (!peer.stranger) return;
  by_uid_.erase(peer.address.uid);
  guests_.leave(id);
}

bool TcpStream::close_peers(Nanos now) {
  if (!closing_) {
    closing_ = true;
    const auto goodbye = encode_prefix(kGoodbyeLength);
    for (size_t p = 0; p < peers_.size(); ++p) {
      for (Link& link : peers_[p].links) {
        if (link.phase == Phase::kIdle || link.phase == Phase::kEnded) continue;
        link.queue.append(goodbye);
        link.goodbye_queued = true;
        if (link.phase == Phase::kOpen) flush(*link.connection);
      }
    }
  }
  DiscardingSink sink;
  poll(sink, now);
  for (const Peer& peer : peers_) {
    for (const Link& link : peer.links) {
      if (link.phase == Phase::kIdle || link.phase == Phase::kEnded) continue;
      if (link.phase != Phase::kOpen || link.unsent() > 0) return false;
      if (!link.connection->write_broken && link.connection->unacknowledged() > 0) return false;
    }
  }
  return true;
}

Nanos TcpStream::until_timer() const noexcept {
  if (!reports_.empty() || timers_.touched()) return 0;
  Nanos next = timers_.next();
  if (listeners_.paused()) next = std::min(next, listeners_.resume_at());
  return next == kNever ? kNever : std::max<Nanos>(next - now_, 0);
}

}  // namespace mcast
