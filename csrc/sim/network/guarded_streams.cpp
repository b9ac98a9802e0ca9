// Records. Bytes of a connection are opened in the order in which they arrive: bytes that were
// changed, cut, left out, duplicated, moved or reflected open under no key and number, and the peer
// is lost, as its connections are over TCP. The goodbye is a record too, so an end without one is
// not a graceful end.
#include "sim/network/guarded_streams.h"

#include <algorithm>

#include "transport/guarded/errors.h"

namespace mcast::sim {

using crypto::PublicKey;

namespace {

constexpr size_t most_frame(Channel channel) {
  return channel == Channel::kControl ? kMaxControlFrame : kMaxBulkFrame;
}

}  // namespace

std::string peer_text(EndpointId peer) { return "peer sim:" + std::to_string(peer + 1); }

GuardedStreams::GuardedStreams(const GuardOptions& options, EndpointId self, Way way)
    : options_(options), self_(self), way_(std::move(way)), rng_(options.seed) {}

void GuardedStreams::add(EndpointId id, const PublicKey& key, crypto::Role role) {
  Peer& peer = peers_[id];
  peer.added = true;
  if (key == kUnknownKey) return;
  if (peer.key != kUnknownKey && peer.key != key) fail(id, guarded::two_keys(peer_text(id)));
  peer.key = key;
  peer.role = role;
}

void GuardedStreams::say(EndpointId to, Channel channel, uint64_t connection, ConstBytes bytes,
                         Frame::Sign sign) {
  Frame message(bytes.begin(), bytes.end());
  message.connection = connection;
  message.sign = sign;
  totals_.handshakes++;
  totals_.handshake_bytes += bytes.size();
  way_.carry(to, channel, std::move(message));
}

void GuardedStreams::send(EndpointId to, Channel channel, Frame frame) {
  Peer& peer = peers_[to];
  Link& link = link_of(to, channel);
  if (peer.down || link.phase == Phase::kEnded) return;
  if (link.phase == Phase::kOpen) return seal(to, channel, frame);
  link.waiting.push_back(std::move(frame));
  if (link.phase == Phase::kIdle) connect(to, channel);
}

size_t GuardedStreams::waiting(EndpointId to, Channel channel) const {
  const auto at = peers_.find(to);
  if (at == peers_.end()) return 0;
  size_t bytes = 0;
  for (const Frame& frame : at->second.links[static_cast<size_t>(channel)].waiting) {
    bytes += frame.size();
  }
  return bytes;
}

// An empty frame is the goodbye.
void GuardedStreams::seal(EndpointId to, Channel channel, ConstBytes frame) {
  Link& link = link_of(to, channel);
  Frame record(crypto::record_size(frame.size(), false));
  record.connection = link.connection;
  link.records.age(way_.now());
  if (!link.records.seal(std::nullopt, {&frame, 1}, record.data())) {
    return fail(to, guarded::keys_used_up(peer_text(to)));
  }
  totals_.records++;
  totals_.record_bytes += record.size() - frame.size();
  totals_.epochs = std::max(totals_.epochs, link.records.epoch());
  way_.carry(to, channel, std::move(record));
}

// The link's keys are known.
void GuardedStreams::adopt(EndpointId peer, Channel channel) {
  Link& link = link_of(peer, channel);
  link.phase = Phase::kOpen;
  link.connector.reset();
  link.awaits_confirm = false;
  link.deadline = link.failing_since = kNever;
  link.backoff = 0;
  while (!link.waiting.empty() && link.phase == Phase::kOpen) {
    const Frame frame = std::move(link.waiting.front());
    link.waiting.pop_front();
    seal(peer, channel, frame);
  }
  if (closing_ && link.phase == Phase::kOpen && !std::exchange(link.goodbye_sent, true)) {
    seal(peer, channel, {});
  }
}

std::optional<ConstBytes> GuardedStreams::take(EndpointId from, Channel channel,
                                               const Frame& message) {
  const auto frame = hear(from, channel, message);
  if (closing_) (void)close();
  return frame;
}

std::optional<ConstBytes> GuardedStreams::hear(EndpointId from, Channel channel,
                                               const Frame& message) {
  const uint64_t connection = message.connection;
  const auto half = half_open_.find(connection);
  Link& link = link_of(from, channel);
  if (message.sign == Frame::Sign::kOpen) {
    on_open(from, channel, connection);
  } else if (message.sign == Frame::Sign::kReset) {
    half_open_.erase(connection);
    if (link.connection != connection) return std::nullopt;
    if (link.phase == Phase::kAttempt) retry(from, channel);
    if (link.phase != Phase::kOpen) return std::nullopt;
    fail(from, Status(Code::kPeerLost, "connection to " + peer_text(from) + " broke"));
  } else if (half != half_open_.end()) {
    half->second.answered ? on_confirm(connection, half->second, message)
                          : on_hello(connection, half->second, message);
  } else if (link.connection != connection || peers_[from].down) {
    return std::nullopt;  // of a connection that is over
  } else if (link.phase == Phase::kOpen) {
    return open(from, channel, message);
  } else if (link.phase == Phase::kAttempt) {
    link.hello_sent ? on_ack(from, channel, message) : on_challenge(from, channel, message);
  }
  return std::nullopt;
}

std::optional<ConstBytes> GuardedStreams::open(EndpointId from, Channel channel,
                                               const Frame& record) {
  Link& link = link_of(from, channel);
  const size_t most = most_frame(channel), size = record.size();
  const uint32_t length = size < crypto::kRecordLength
                              ? UINT32_MAX
                              : crypto::record_length(wire::load<uint32_t>(record.data()));
  if (link.goodbye_heard || !crypto::record_length_allowed(length, most, false)) {
    refusals_.emplace_back(Cause::malformed, from);
    const std::string what = link.goodbye_heard
                                 ? " sent data after its goodbye"
                                 : " sent a frame of " + std::to_string(length) +
                                       " bytes (allowed: 1 to " + std::to_string(most) + ")";
    fail(from, Status(Code::kPeerLost, peer_text(from) + what));
    return std::nullopt;
  }
  if (scratch_.size() < size) scratch_.resize(size);
  // If a stream lacks bytes, or has extra ones, the rest would not open either.
  const bool whole = size == crypto::kRecordLength + length;
  const auto body = whole ? link.records.open(false, record, scratch_) : std::nullopt;
  if (!body) {
    refusals_.emplace_back(Cause::forged, from);
    fail(from, guarded::record_forged(peer_text(from)));
    return std::nullopt;
  }
  if (!body->empty()) return body;
  link.goodbye_heard = true;
  return std::nullopt;
}

void GuardedStreams::fail(EndpointId id, const Status& why) {
  Peer& peer = peers_[id];
  if (peer.down) return;
  (void)end(id, false);
  way_.lost(id, why);
}

bool GuardedStreams::end(EndpointId id, bool graceful) {
  Peer& peer = peers_[id];
  bool said = graceful;
  for (Link& link : peer.links) {
    said = said && (link.phase != Phase::kOpen || link.goodbye_heard);
    link.phase = Phase::kEnded;
    link.waiting.clear();
    link.connector.reset();
    link.records = {};
  }
  peer.down = true;
  std::erase_if(half_open_, [id](const auto& half) { return half.second.from == id; });
  return said;
}

bool GuardedStreams::close() {
  closing_ = true;
  bool done = true;
  for (auto& [id, peer] : peers_) {
    for (size_t c = 0; c < kChannels && !peer.down; c++) {
      Link& link = peer.links[c];
      if (link.phase == Phase::kOpen && !std::exchange(link.goodbye_sent, true)) {
        seal(id, static_cast<Channel>(c), {});
      }
      done = done && link.waiting.empty();
    }
  }
  if (done && !std::exchange(closed_, true)) way_.closed();
  return done;
}

}  // namespace mcast::sim
