// Frames on established connections, credits, failure and goodbye. (stream_connect.cpp makes the
// connections.)
//
// send() queues a copy of the frame, and pump() cuts the queues into messages while the connection
// has entries and credits: control first, the two bulk channels alternating message by message, so
// that a repair of 64 KB delays a control frame by one message at most. A receiver posts each
// receive again once its bytes are handed over, and returns the credit with the next message in the
// other direction, or with a message of its own when half of all credits are owed.
//
// A completion with an error ends the connection. The queue pair's flush reports everything behind
// it with an error too; the first reason is kept. Messages that the peer had sent before are in the
// completion queue already and are handed over first, so a goodbye among them makes the end a
// graceful one.
#include "transport/verbs/stream.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "base/socket_address.h"
#include "transport/udp/socket.h"
#include "transport/verbs/rc_guarded_handshake.h"

namespace mcast::verbs {
namespace {

constexpr size_t kCompletionsPerPoll = 256;

// Text for users that explains a completion's status.
std::string reason(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "it does not answer any more (transport retries exceeded)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "it posted no receives (receiver-not-ready retries exceeded)";
    case IBV_WC_REM_ACCESS_ERR:
      return "it refused an RDMA Read (remote access error)";
    case IBV_WC_REM_INV_REQ_ERR:
      return "it refused a request (remote invalid request)";
    case IBV_WC_REM_OP_ERR:
      return "it could not serve a request (remote operation error)";
    case IBV_WC_LOC_LEN_ERR:
      return "a message was longer than its receive (local length error)";
    case IBV_WC_LOC_PROT_ERR:
      return "memory was not registered (local protection error)";
    case IBV_WC_LOC_QP_OP_ERR:
      return "the queue pair refused a request (local operation error)";
    case IBV_WC_WR_FLUSH_ERR:
      return "its queue pair was flushed";
    case IBV_WC_FATAL_ERR:
      return "the device reported a fatal error";
    default:
      return "completion status " + std::to_string(static_cast<int>(status));
  }
}

}  // namespace

RcStream::~RcStream() {
  if (abandoned_) return;
  graveyard_.clear();
  connections_.clear();
  if (listener_.id != nullptr) cm_.destroy(listener_.id);
}

Status RcStream::open(const VerbsOptions& options) {
  options_ = options;
  uid_ = secure_random64();
  exposures_.emplace(device_.api(), device_.pd(), device_.regions(), device_.mtu());
  auto id = cm_.make(this, RDMA_PS_TCP);
  if (!id.ok()) return id.status();
  listener_.id = *id;
  Api& api = device_.api();
  listener_.at = {device_.port().interface.address, 0};
  SocketAddress at(listener_.at);
  if (const int e = api.bind_addr(listener_.id, at.get()); e != 0) {
    return Status::system(e, "rdma_bind_addr of the listener");
  }
  if (const int e = api.listen(listener_.id, 256); e != 0) return Status::system(e, "rdma_listen");
  return queue_with_room().status();
}

StreamAddress RcStream::address(bool) const {
  StreamAddress address{uid_, listener_.at.address.text(), device_.api().local_port(listener_.id)};
  if (options_.identity) address.key = options_.identity->pair.public_key();
  return address;
}

PeerId RcStream::new_peer(const StreamAddress& address, const Source* guest) {
  Guests& guests = listener_.guests;
  if (guest != nullptr && guests.full()) {
    const Guests::Guest other = guests.to_displace();
    refusals_.note(Cause::crowded_out, Source{{other.from, 0}});
    fail_peer(other.id, Status(Code::kPeerLost, "other connections took its place"));
  }
  PeerId id = guests.take_id();
  if (id == kNoPeer) {
    id = static_cast<PeerId>(peers_.size());
    peers_.emplace_back();
  }
  peers_[id] = Peer();
  peers_[id].address = address;
  peers_[id].stranger = guest != nullptr;
  if (guest != nullptr) guests.enter(id, guest->address);
  by_uid_[address.uid] = id;
  return id;
}

PeerId RcStream::add_peer(const StreamAddress& address) {
  const auto known = by_uid_.find(address.uid);
  const PeerId id = known != by_uid_.end() ? known->second : new_peer(address, nullptr);
  if (std::exchange(peers_[id].stranger, false)) listener_.guests.leave(id);
  const std::string before = text(id);
  if (!guarded::learn(peers_[id].address, address)) fail_peer(id, guarded::two_keys(before));
  return id;
}

std::vector<PeerId> RcStream::expect(std::span<const uint64_t> uids) {
  std::vector<PeerId> ids;
  for (const uint64_t uid : uids) ids.push_back(add_peer({.uid = uid, .host = "", .port = 0}));
  listener_.guests.turn_away();
  return ids;
}

std::string RcStream::text(PeerId id) const {
  const StreamAddress& a = peers_[id].address;
  return "peer " + a.host + ":" + std::to_string(a.port) + " (verbs)";
}

size_t RcStream::queued(PeerId peer, Channel channel) const {
  return peer < peers_.size() ? peers_[peer].queued[static_cast<size_t>(channel)] : 0;
}

void RcStream::send(PeerId id, Channel channel, std::span<const ConstBytes> parts) {
  if (id >= peers_.size()) return;
  Peer& peer = peers_[id];
  if (peer.phase == Phase::kEnded || closing_) {
    ++stats_.frames_dropped;
    return;
  }
  size_t length = 0;
  for (const ConstBytes& part : parts) length += part.size();
  if (length == 0 || length > max_frame(channel)) {
    fail_peer(id, Status(Code::kInternal,
                         "frame of " + std::to_string(length) + " bytes for " + text(id)));
    return;
  }
  Outgoing frame;
  frame.bytes.reserve(length);
  for (const ConstBytes& part : parts) {
    frame.bytes.insert(frame.bytes.end(), part.begin(), part.end());
  }
  const auto c = static_cast<size_t>(channel);
  peer.queues[c].push_back(std::move(frame));
  peer.queued[c] += length;
  if (peer.phase == Phase::kIdle) start(id);
  if (peer.phase == Phase::kOpen) pump(id);
}

void RcStream::pump(PeerId id) {
  Peer& peer = peers_[id];
  if (peer.phase != Phase::kOpen) return;
  if (auto& guard = peer.connection->guard) guard->records.age(now_);
  Connection& c = *peer.connection;
  if (!c.problem.ok()) return;
  Status status;
  const auto waiting = [&peer] {
    return !peer.queues[0].empty() || !peer.queues[1].empty() || !peer.queues[2].empty();
  };
  while (status.ok() && waiting()) {
    if (!c.can_send(true)) {
      ++stats_.credit_waits;
      return;
    }
    size_t channel = 0;
    if (peer.queues[0].empty()) {
      channel = 1 + peer.turn++ % 2;
      if (peer.queues[channel].empty()) channel = 3 - channel;
    }
    Outgoing& frame = peer.queues[channel].front();
    const Message message{Kind::kData, static_cast<Channel>(channel), frame.sent == 0, 0,
                          static_cast<uint32_t>(frame.bytes.size())};
    const size_t piece = std::min(c.room(), frame.bytes.size() - frame.sent);
    const ConstBytes bytes = ConstBytes(frame.bytes).subspan(frame.sent, piece);
    frame.sent += piece;
    peer.queued[channel] -= piece;
    std::vector<std::byte> last;  // holds the bytes until they are copied into their message
    if (frame.sent == frame.bytes.size()) {
      last = std::move(frame.bytes);
      peer.queues[channel].pop_front();
    }
    status = c.send_message(message, bytes, !waiting());
  }
  if (status.ok() && peer.goodbye_due && !c.goodbye_sent && c.can_send(true)) {
    c.goodbye_sent = true;
    status = c.send_message({Kind::kGoodbye, Channel::kControl, false, 0, 0}, {}, true);
  }
  if (!status.ok()) {
    c.problem = status;
    timers_.touch();  // reported by the next poll
  }
}

void RcStream::return_credits(Connection& c) {
  // (Before the connection is open, there may be no keys to seal with, or the peer may not have
  // them.)
  if (c.state != Connection::State::kOpen) return;
  if (c.owed() < kCredits / 2 || !c.can_send(false) || !c.problem.ok()) return;
  ++stats_.credit_messages;
  const Status status = c.send_message({Kind::kCredit, Channel::kControl, false, 0, 0}, {}, true);
  if (!status.ok()) c.problem = status;
}

size_t RcStream::poll(StreamSink& sink, Nanos now) {
  now_ = now;
  size_t events = drain(sink);
  events += cm_.poll();
  device_.poll_events(now);
  if (const Status gone = device_.condition(false); !gone.ok()) {
    for (PeerId id = 0; id < peers_.size(); ++id) {
      if (peers_[id].phase == Phase::kIdle || peers_[id].phase == Phase::kEnded) continue;
      fail_peer(id, Status(Code::kPeerLost, text(id) + ": " + gone.message()));
    }
  }
  if (timers_.due(now)) run_timers(now);
  // A sink may send, and so add to the list.
  for (size_t i = 0; i < reports_.size(); ++i) {
    const Report report = reports_[i];
    if (report.stranger) {
      sink.on_stranger_gone(report.peer);
      listener_.guests.give_back(report.peer);
    } else {
      sink.on_peer_down(report.peer, report.why, report.graceful);
    }
    ++events;
  }
  reports_.clear();
  refusals_.tell(sink);
  graveyard_.clear();
  return events;
}

size_t RcStream::drain(StreamSink& sink) {
  size_t events = 0;
  bool dry = true;
  for (size_t q = 0; q < queues_.size(); ++q) {
    ibv_wc wc;
    size_t n = 0;
    for (; n < kCompletionsPerPoll && queues_[q]->next(wc); ++n) on_completion(wc, sink);
    events += n;
    dry = dry && n < kCompletionsPerPoll;
  }
  if (!dry) return events;
  // Connections that had an error: everything before it has been handed over now.
  const bool broken_pairs = device_.any_broken();
  std::vector<Connection*> failed;
  for (const auto& [serial, c] : connections_) {
    if (!c->problem.ok() || (broken_pairs && device_.take_broken(c->qp_number()))) {
      failed.push_back(c.get());
    }
  }
  for (Connection* c : failed) broken(*c);
  return events;
}

void RcStream::on_completion(const ibv_wc& wc, StreamSink& sink) {
  const auto it = connections_.find(Connection::serial_of(wc.wr_id));
  if (it == connections_.end()) return;  // the connection of this completion is gone
  Connection& c = *it->second;
  const auto work = Connection::work_of(wc.wr_id);
  if (wc.status != IBV_WC_SUCCESS) {
    // A flush only shows that something else failed; the completion with the reason may come later.
    const bool flush = wc.status == IBV_WC_WR_FLUSH_ERR;
    if (c.problem.ok() || (!flush && c.problem.code() == Code::kClosed)) {
      c.problem = Status(flush ? Code::kClosed : Code::kPeerLost, reason(wc.status));
    }
    return;
  }
  switch (work) {
    case Connection::Work::kSend:
      c.sent_up_to(Connection::number_of(wc.wr_id));
      if (c.peer != kNoPeer) pump(c.peer);
      return_credits(c);  // those due while no entry was free
      break;
    case Connection::Work::kReceive:
      on_message(c, wc, sink);
      break;
    case Connection::Work::kRead:
      on_read(c, wc, sink);
      break;
  }
}

void RcStream::on_message(Connection& c, const ibv_wc& wc, StreamSink& sink) {
  if (c.state == Connection::State::kDead) return;
  if (c.guard && c.guard->awaits != RcGuard::Awaits::kRecords) {
    return RcGuardedHandshake::on_message(*this, c, wc);
  }
  ConstBytes bytes = c.received(wc);
  if (c.guard && !RcGuardedHandshake::open(*this, c, bytes)) return;
  // A message may overtake the event that the connection is established. (With a guard, the first
  // record establishes it.)
  if (c.state != Connection::State::kOpen) established(c);
  const auto message = parse_message(bytes);
  if (!message) {
    violation(c, " sent a malformed message of " + std::to_string(bytes.size()) + " bytes");
    return;
  }
  if (c.said_goodbye && message->kind != Kind::kCredit) {
    violation(c, " sent data after its goodbye");
    return;
  }
  c.grant(message->credits);
  switch (message->kind) {
    case Kind::kData:
      if (!put_together(c, *message, bytes.subspan(kMessageHeader), sink)) return;
      c.owe();
      break;
    case Kind::kGoodbye:
      c.said_goodbye = true;
      c.owe();
      break;
    case Kind::kCredit:
      break;
  }
  if (c.state == Connection::State::kDead) return;  // done by the sink
  if (Status s = c.repost(Connection::number_of(wc.wr_id)); !s.ok()) {
    c.problem = s;
    return;
  }
  if (c.said_goodbye) {
    fail_peer(c.peer, Status(Code::kClosed, text(c.peer) + " said goodbye"), true);
    return;
  }
  pump(c.peer);
  return_credits(c);
}

// Returns false if the connection is over.
bool RcStream::put_together(Connection& c, const Message& m, ConstBytes piece, StreamSink& sink) {
  Connection::Assembly& a = c.assembly[static_cast<size_t>(m.channel)];
  if (m.first != (a.expected == 0) || piece.empty() || m.length == 0 ||
      m.length > max_frame(m.channel) || (!m.first && m.length != a.expected) ||
      a.bytes.size() + piece.size() > m.length) {
    violation(c, " sent a frame of " + std::to_string(m.length) +
                     " bytes in wrong pieces (allowed: " + "1 to " +
                     std::to_string(max_frame(m.channel)) + ")");
    return false;
  }
  if (m.first && piece.size() == m.length) {
    sink.on_frame(c.peer, m.channel, piece);
  } else {
    if (m.first) {
      a.expected = m.length;
      a.bytes.reserve(m.length);
    }
    a.bytes.insert(a.bytes.end(), piece.begin(), piece.end());
    if (a.bytes.size() == m.length) {
      sink.on_frame(c.peer, m.channel, a.bytes);
      a.bytes.clear();
      a.expected = 0;
    }
  }
  return c.state != Connection::State::kDead;
}

void RcStream::violation(Connection& c, const std::string& what) {
  ++stats_.protocol_violations;
  fail_peer(c.peer, Status(Code::kPeerLost, text(c.peer) + what));
}

// Runs only after everything that had arrived was handed over.
void RcStream::broken(Connection& c) {
  if (c.state == Connection::State::kDead) return;
  if (c.state == Connection::State::kHalfOpen) return RcGuardedHandshake::gone(*this, c);
  const PeerId id = c.peer;
  if (peers_[id].connection != &c) {
    retire(c);
    return;
  }
  if (c.guard && c.guard->used_up) return fail_peer(id, guarded::keys_used_up(text(id)));
  if (c.state != Connection::State::kOpen) {
    attempt_failed(id,
                   c.problem.ok() ? Status(Code::kUnavailable, "the queue pair broke") : c.problem);
    return;
  }
  if (c.goodbye_sent) {
    // Our last message was sent, and the peer, which has everything before it, closed without
    // waiting.
    fail_peer(id, Status(Code::kClosed, text(id) + " closed after our goodbye"), true);
    return;
  }
  const Status device = device_.condition(true);
  std::string why = c.problem.ok() ? "the device broke the queue pair" : c.problem.message();
  if (!device.ok()) why = device.message() + "; " + why;
  fail_peer(id, Status(Code::kPeerLost, "connection to " + text(id) + " broke: " + why));
}

void RcStream::fail_peer(PeerId id, Status why, bool graceful) {
  Peer& peer = peers_[id];
  if (peer.phase == Phase::kEnded) return;
  if (peer.connection != nullptr) retire(*peer.connection);
  peer.connection = nullptr;
  peer.phase = Phase::kEnded;
  for (auto& queue : peer.queues) queue.clear();
  peer.queued = {};
  reports_.push_back({id, std::move(why), graceful, peer.stranger});
  timers_.touch();
  if (!peer.stranger) return;
  by_uid_.erase(peer.address.uid);
  listener_.guests.leave(id);
}

bool RcStream::close_peers(Nanos now) {
  if (!closing_) {
    closing_ = true;
    for (PeerId id = 0; id < peers_.size(); ++id) {
      peers_[id].goodbye_due = peers_[id].phase != Phase::kIdle;
      pump(id);
    }
  }
  DiscardingSink sink;
  poll(sink, now);
  for (PeerId id = 0; id < peers_.size(); ++id) {
    const Peer& peer = peers_[id];
    if (peer.phase == Phase::kIdle || peer.phase == Phase::kEnded) continue;
    pump(id);
    if (peer.phase != Phase::kOpen || !peer.connection->goodbye_sent) return false;
    if (!peer.connection->all_sent()) return false;
  }
  return true;
}

Result<RemoteGrant> RcStream::expose(const Slice& block, size_t offset) {
  return exposures_->expose(block, offset);
}

bool RcStream::read(PeerId id, uint64_t address, uint32_t key, size_t length, uint64_t token) {
  if (id >= peers_.size() || peers_[id].phase != Phase::kOpen || length == 0 ||
      length > kReadBytes) {
    return false;
  }
  Connection& c = *peers_[id].connection;
  const size_t entry = c.take_read_entry();
  if (entry == kReads) return false;
  if (Status s = c.read(entry, address, key, length); !s.ok()) {
    c.free_read_entry(entry);
    log(LogLevel::kInfo, "%s: %s", text(id).c_str(), s.message().c_str());
    return false;
  }
  reads_[uint64_t{c.serial()} << 32 | entry] = {token, length};
  return true;
}

void RcStream::on_read(Connection& c, const ibv_wc& wc, StreamSink& sink) {
  const uint32_t entry = Connection::number_of(wc.wr_id);
  const auto it = reads_.find(uint64_t{c.serial()} << 32 | entry);
  if (it == reads_.end()) return;
  const Read read = it->second;
  reads_.erase(it);
  // Not every driver reports the length of a read.
  if (wc.byte_len != 0 && wc.byte_len != read.length) {
    c.problem = Status(Code::kPeerLost, "an RDMA Read brought " + std::to_string(wc.byte_len) +
                                            " of " + std::to_string(read.length) + " bytes");
    return;
  }
  ++stats_.reads_completed;
  stats_.read_bytes += read.length;
  sink.on_read(c.peer, read.token, c.read_entry(entry, read.length));
  c.free_read_entry(entry);
}

bool RcStream::ready() {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& q) { return q->ready(); });
}

bool RcStream::arm() {
  bool quiet = true;
  for (const auto& queue : queues_) quiet = queue->arm() && quiet;
  return quiet;
}

Nanos RcStream::until_timer() const noexcept {
  if (!reports_.empty() || timers_.touched()) return 0;
  return timers_.next() == kNever ? kNever : std::max<Nanos>(timers_.next() - now_, 0);
}

void RcStream::abandon() noexcept {
  abandoned_ = true;
  if (exposures_) exposures_->abandon();
  for (const auto& queue : queues_) queue->abandon();
  for (const auto& [serial, connection] : connections_) connection->abandon();
  for (const auto& connection : graveyard_) connection->abandon();
}

}  // namespace mcast::verbs
