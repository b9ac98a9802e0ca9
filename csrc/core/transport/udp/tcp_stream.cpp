// Sending and receiving on open connections, failure and goodbye. (Making connections is in
// tcp_handshake.cpp.)
//
// A link is the (peer, channel) pair; it owns the queue of bytes to send, so the queue survives a
// change of connection before the first byte has left. send() writes at once when nothing is
// queued; else bytes leave when epoll reports room. Reads go through one scratch buffer, one read
// per ready connection and poll, which keeps a busy peer from starving the others.
//
// A failed write only stops writing: what the peer had sent before it went away is still read, and
// the end of its input decides between a graceful and an abrupt end. Closing down sends the goodbye
// marker and FIN on every connection and keeps reading, because closing a socket with unread input
// makes the kernel send RST, which could destroy our last bytes.
#include "transport/udp/tcp_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace mcast {
namespace {

constexpr size_t kVectors = 16;

class DiscardingSink final : public StreamSink {
 public:
  void on_frame(PeerId, Channel, ConstBytes) override {}
  void on_peer_down(PeerId, const Status&, bool) override {}
};

std::string peer_text(const StreamAddress& address) {
  return "peer " + address.host + ":" + std::to_string(address.port);
}

}  // namespace

StreamAddress TcpStream::address(bool loopback) const {
  const Listener& l = loopback && listeners_[1].fd.valid() ? listeners_[1] : listeners_[0];
  return {uid_, to_text(l.address.sin_addr), ntohs(l.address.sin_port)};
}

PeerId TcpStream::add_peer(const StreamAddress& address) {
  const auto [it, added] = by_uid_.try_emplace(address.uid, static_cast<PeerId>(peers_.size()));
  if (added) peers_.emplace_back();
  // The newest address counts: the first may only be what the peer's Hello said.
  peers_[it->second].address = address;
  return it->second;
}

size_t TcpStream::queued(PeerId peer, Channel channel) const {
  return peer < peers_.size() ? peers_[peer].links[static_cast<size_t>(channel)].queue.size() : 0;
}

void TcpStream::send(PeerId id, Channel channel, std::span<const ConstBytes> parts) {
  if (id >= peers_.size()) return;
  Link& link = peers_[id].links[static_cast<size_t>(channel)];
  if (link.phase == Phase::kEnded || peers_[id].down || closing_) {
    ++stats_.frames_dropped;
    return;
  }
  size_t length = 0;
  for (const ConstBytes& part : parts) length += part.size();
  if (length == 0 || length > max_frame(channel)) {
    fail_peer(id, Status(Code::kInternal, "frame of " + std::to_string(length) + " bytes for " +
                                              peer_text(peers_[id].address)));
    return;
  }
  const auto prefix = encode_prefix(static_cast<uint32_t>(length));
  size_t taken = 0;
  if (link.phase == Phase::kOpen && link.queue.empty() && parts.size() < kVectors) {
    if (link.connection->write_broken) {
      ++stats_.frames_dropped;
      return;
    }
    std::array<iovec, kVectors> vectors;
    size_t used = 0;
    vectors[used++] = {const_cast<std::byte*>(prefix.data()), prefix.size()};
    for (const ConstBytes& part : parts) {
      vectors[used++] = {const_cast<std::byte*>(part.data()), part.size()};
    }
    taken = link.connection->write({vectors.data(), used});
    if (link.connection->write_broken || taken == kFramePrefix + length) return;
  }
  const auto keep = [&](ConstBytes bytes) {
    const size_t skip = std::min(taken, bytes.size());
    taken -= skip;
    link.queue.append(bytes.subspan(skip));
  };
  keep(prefix);
  for (const ConstBytes& part : parts) keep(part);
  if (link.phase == Phase::kIdle) connect_link(id, channel);
  if (link.phase == Phase::kOpen) link.connection->want(EPOLLIN | EPOLLOUT);
}

size_t TcpStream::poll(StreamSink& sink, Nanos now) {
  now_ = now;
  std::array<epoll_event, 64> ready;
  const size_t n = epoll_.wait(ready, 0);
  size_t events = n;
  for (size_t i = 0; i < n; ++i) {
    void* const tag = ready[i].data.ptr;
    if (tag == &listeners_[0] || tag == &listeners_[1]) {
      accept_all(*static_cast<Listener*>(tag));
    } else {
      service(*static_cast<TcpConnection*>(tag), ready[i].events, sink, events);
    }
  }
  if (timers_dirty_ || now >= next_timer_ || paused_) run_timers(now);
  // A sink may send, and so add to the list.
  for (size_t i = 0; i < reports_.size(); ++i) {
    const Report report = reports_[i];
    sink.on_peer_down(report.peer, report.why, report.graceful);
    ++events;
  }
  reports_.clear();
  graveyard_.clear();
  return events;
}

void TcpStream::service(TcpConnection& c, uint32_t ready, StreamSink& sink, size_t& events) {
  using State = TcpConnection::State;
  switch (c.state) {
    case State::kDead:
      return;
    case State::kConnecting: {
      if (const int error = pending_error(c.fd()); error != 0) {
        attempt_failed(c.peer, c.channel, error);
      } else if ((ready & EPOLLOUT) != 0) {
        say_hello(c);
      }
      return;
    }
    case State::kHelloSent:
      on_hello_ack(c);
      return;
    case State::kHelloWait:
      on_hello(c);
      return;
    case State::kOpen:
      break;
  }
  if (c.read_done) {
    // Only our own last bytes are still on their way.
    if ((ready & (EPOLLERR | EPOLLHUP)) != 0) {
      end_link(c);
    } else {
      flush(c);
    }
    return;
  }
  if ((ready & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) read(c, sink, events);
  if (c.state == State::kOpen && (ready & EPOLLOUT) != 0) flush(c);
}

void TcpStream::read(TcpConnection& c, StreamSink& sink, size_t& events) {
  FrameScan scan;
  const bool after_goodbye = c.goodbye;
  const auto io = c.read_frames(
      {scratch_.get(), kScratchSize},
      [&](ConstBytes frame) {
        if (after_goodbye) return false;
        ++events;
        sink.on_frame(c.peer, c.channel, frame);
        return c.state == TcpConnection::State::kOpen;
      },
      scan);
  if (c.state != TcpConnection::State::kOpen || io == TcpConnection::Io::kAgain) return;
  if (io != TcpConnection::Io::kOk) {
    input_ended(c, io);
  } else if (after_goodbye || scan.end == FrameScan::End::kViolation) {
    ++stats_.protocol_violations;
    const std::string what = after_goodbye || scan.bad_length == kGoodbyeLength
                                 ? " sent data after its goodbye"
                                 : " sent a frame of " + std::to_string(scan.bad_length) +
                                       " bytes (allowed: 1 to " +
                                       std::to_string(max_frame(c.channel)) + ")";
    fail_peer(c.peer, Status(Code::kPeerLost, peer_text(peers_[c.peer].address) + what));
  } else if (scan.end == FrameScan::End::kGoodbye) {
    c.goodbye = true;
  }
}

void TcpStream::input_ended(TcpConnection& c, TcpConnection::Io how) {
  if (c.goodbye) {
    c.read_done = true;
    // While closing down, our own last bytes still go out; the peer reads until our FIN.
    if (closing_ && how == TcpConnection::Io::kEof && !c.fin_sent && !c.write_broken) {
      flush(c);
    } else {
      end_link(c);
    }
    return;
  }
  const std::string who = peer_text(peers_[c.peer].address);
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
  while (!link.queue.empty() && !c.write_broken) {
    std::array<iovec, kVectors> vectors;
    const size_t used = link.queue.front(vectors);
    size_t offered = 0;
    for (size_t i = 0; i < used; ++i) offered += vectors[i].iov_len;
    const size_t taken = c.write({vectors.data(), used});
    link.queue.consume(taken);
    if (taken < offered) break;
  }
  if (c.write_broken) link.queue.clear();
  if (link.goodbye_queued && link.queue.empty() && !c.fin_sent && !c.write_broken) {
    (void)::shutdown(c.fd(), SHUT_WR);
    c.fin_sent = true;
  }
  if (c.read_done && (c.fin_sent || c.write_broken)) {
    end_link(c);
    return;
  }
  c.want((c.read_done ? 0u : EPOLLIN) | (link.queue.empty() ? 0u : EPOLLOUT));
}

void TcpStream::end_link(TcpConnection& c) {
  const PeerId id = c.peer;
  Link& link = link_of(c);
  retire(c);
  link.connection = nullptr;
  link.phase = Phase::kEnded;
  link.queue.clear();
  for (const Link& other : peers_[id].links) {
    if (other.phase == Phase::kOpen) return;
  }
  fail_peer(id, Status(Code::kClosed, peer_text(peers_[id].address) + " said goodbye"), true);
}

void TcpStream::fail_peer(PeerId id, Status why, bool graceful) {
  Peer& peer = peers_[id];
  if (peer.down) return;
  peer.down = true;
  for (Link& link : peer.links) {
    if (link.connection != nullptr) retire(*link.connection);
    link.connection = nullptr;
    link.phase = Phase::kEnded;
    link.queue.clear();
  }
  reports_.push_back({id, std::move(why), graceful});
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
      if (link.phase != Phase::kOpen || !link.queue.empty()) return false;
      if (!link.connection->write_broken && link.connection->unacknowledged() > 0) return false;
    }
  }
  return true;
}

Nanos TcpStream::until_timer() const noexcept {
  if (!reports_.empty() || timers_dirty_) return 0;
  Nanos next = next_timer_;
  if (paused_) next = std::min(next, resume_at_);
  return next == kNever ? kNever : std::max<Nanos>(next - now_, 0);
}

void TcpStream::abandon() noexcept {
  for (Listener& listener : listeners_) listener.fd.reset();
  for (auto& c : connections_) c->abandon();
  epoll_.abandon();
}

}  // namespace mcast
