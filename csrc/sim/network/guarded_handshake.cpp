// Makes the connections of a guarded endpoint. The acceptor speaks first; the link belongs to the
// connection once the Confirm is correct. If both ends connect at once, the one with the lower
// number insists: it replies "yield" to the other's Hello once its own has been sent. A refused end
// tries again, with growing pauses; a peer that does not send a Challenge in time is lost.
#include <algorithm>

#include "sim/network/guarded_streams.h"
#include "transport/guarded/errors.h"

namespace mcast::sim {

using crypto::HandshakeError;

namespace {

constexpr Nanos kFirstBackoff = 10 * kMilli, kLastBackoff = 200 * kMilli;
constexpr std::byte kEmpty[1] = {};  // for messages that have no bytes over TCP
constexpr uint32_t kHelloMagic = 0x5453434d, kAckMagic = 0x4153434d;  // "MCST", "MCSA"
constexpr uint8_t kAccepted = 0, kYield = 1;

// The transport's own parts of the messages, as in transport/udp/stream_wire.h.
using HelloHead = std::array<std::byte, crypto::kHelloHead>;
using AckHead = std::array<std::byte, crypto::kAckHead>;

uint64_t uid_of(EndpointId endpoint) { return uint64_t{endpoint} + 1; }

HelloHead hello_head(Channel channel, EndpointId self, EndpointId peer) {
  HelloHead head{};
  wire::store<uint32_t>(&head[0], kHelloMagic);
  wire::store<uint8_t>(&head[6], static_cast<uint8_t>(channel));
  wire::store<uint64_t>(&head[8], uid_of(self));
  wire::store<uint64_t>(&head[16], uid_of(peer));
  return head;
}

AckHead ack_head(uint8_t verdict, Channel channel, EndpointId self) {
  AckHead head{};
  wire::store<uint32_t>(&head[0], kAckMagic);
  wire::store<uint8_t>(&head[6], verdict);
  wire::store<uint8_t>(&head[7], static_cast<uint8_t>(channel));
  wire::store<uint64_t>(&head[8], uid_of(self));
  return head;
}

}  // namespace

crypto::HandshakeNonce GuardedStreams::nonce() {
  crypto::HandshakeNonce bytes;
  wire::store<uint64_t>(&bytes[0], rng_.next());
  wire::store<uint64_t>(&bytes[8], rng_.next());
  return bytes;
}

void GuardedStreams::arm(Nanos& deadline, Nanos patience) {
  deadline = way_.now() + patience;
  next_timer_ = std::min(next_timer_, deadline);
  if (next_timer_ >= looks_at_) return;
  looks_at_ = next_timer_;
  way_.look_at(looks_at_);
}

void GuardedStreams::connect(EndpointId to, Channel channel) {
  const Peer& peer = peers_[to];
  Link& link = link_of(to, channel);
  link.phase = Phase::kAttempt;
  link.connection = uid_of(self_) << 32 | ++attempts_;
  link.hello_sent = false;
  link.connector = std::make_unique<crypto::Connector>(identity(), peer.key, peer.role);
  arm(link.deadline, options_.challenge);
  say(to, channel, link.connection, kEmpty, Frame::Sign::kOpen);
}

// The peer's attempt is used.
void GuardedStreams::give_up(EndpointId to, Channel channel) {
  Link& link = link_of(to, channel);
  if (link.phase == Phase::kAttempt) {
    say(to, channel, link.connection, kEmpty, Frame::Sign::kReset);
  }
  link.connector.reset();
  link.connection = 0;
}

void GuardedStreams::retry(EndpointId to, Channel channel) {
  Link& link = link_of(to, channel);
  link.phase = Phase::kRetry;
  link.connector.reset();
  link.awaits_confirm = false;
  if (link.failing_since == kNever) link.failing_since = way_.now();
  link.backoff = std::clamp(link.backoff * 2, kFirstBackoff, kLastBackoff);
  arm(link.deadline, link.backoff);
}

void GuardedStreams::failed(EndpointId peer, HandshakeError error) {
  const Status why(Code::kPeerLost, crypto::handshake_error_text(error));
  fail(peer, guarded::cannot_guard(peer_text(peer), why));
}

void GuardedStreams::run_timers() {
  const Nanos now = way_.now();
  if (now >= looks_at_) looks_at_ = kNever;
  if (now < next_timer_) return;
  next_timer_ = kNever;
  for (auto half = half_open_.begin(); half != half_open_.end();) {
    const auto at = half++;
    if (now >= at->second.until) {
      refuse(at->first, at->second, Cause::hello_timeouts);
    } else {
      next_timer_ = std::min(next_timer_, at->second.until);
    }
  }
  for (auto& [id, peer] : peers_) {
    for (size_t c = 0; c < kChannels && !peer.down; c++) run_timer(id, static_cast<Channel>(c));
  }
  if (closing_) (void)close();
  if (next_timer_ >= looks_at_) return;
  looks_at_ = next_timer_;
  way_.look_at(looks_at_);
}

void GuardedStreams::run_timer(EndpointId id, Channel channel) {
  Link& link = link_of(id, channel);
  const Nanos now = way_.now();
  if (link.deadline == kNever || link.phase == Phase::kOpen) return;
  if (now < link.deadline) {
    next_timer_ = std::min(next_timer_, link.deadline);
    return;
  }
  link.deadline = kNever;
  if (link.awaits_confirm) return retry(id, channel);
  if (link.phase == Phase::kAttempt && !link.hello_sent) {
    return failed(id, HandshakeError::kNotGuarded);
  }
  const Nanos give_up = std::max(link.failing_since + options_.answer, peers_[id].keep_trying);
  if (link.phase == Phase::kRetry && now < give_up) return connect(id, channel);
  const std::string who = peer_text(id);
  const std::string text = link.phase == Phase::kAttempt ? who + " did not answer an attempt"
                           : link.phase == Phase::kYielded
                               ? who + " announced a connection that never came"
                               : "cannot connect to " + who + ": it refuses what we say";
  fail(id, Status(Code::kPeerLost, text));
}

// ---- the end that connects ----

void GuardedStreams::on_challenge(EndpointId from, Channel channel, const Frame& message) {
  Link& link = link_of(from, channel);
  if (message.size() != crypto::kChallengeSize) return failed(from, HandshakeError::kNotGuarded);
  crypto::HelloBytes hello;
  const auto error = link.connector->hello(
      std::span<const std::byte, crypto::kChallengeSize>(message.data(), crypto::kChallengeSize),
      hello_head(channel, self_, from), nonce(), hello);
  if (error != HandshakeError::kNone) return failed(from, error);
  link.hello_sent = true;
  arm(link.deadline, options_.answer);
  say(from, channel, link.connection, hello);
}

void GuardedStreams::on_ack(EndpointId from, Channel channel, const Frame& message) {
  Link& link = link_of(from, channel);
  if (message.size() != crypto::kGuardedAckSize) return failed(from, HandshakeError::kMac);
  crypto::ConfirmBytes confirm;
  const auto error = link.connector->check_ack(
      std::span<const std::byte, crypto::kGuardedAckSize>(message.data(), crypto::kGuardedAckSize),
      confirm);
  if (error != HandshakeError::kNone) return failed(from, error);
  const auto verdict = wire::load<uint8_t>(&message[6]);
  AckHead expected = ack_head(verdict, channel, from);
  wire::store<uint16_t>(&expected[4], crypto::kGuardedStreamVersion);
  if (verdict > kYield || !std::equal(expected.begin(), expected.end(), message.begin())) {
    return retry(from, channel);
  }
  if (verdict == kYield) {
    link.phase = Phase::kYielded;
    link.connector.reset();
    link.connection = 0;
    return arm(link.deadline, options_.answer);
  }
  if (!start(from, link, link.connector->chains())) return;
  say(from, channel, link.connection, confirm);
  adopt(from, channel);
}

bool GuardedStreams::start(EndpointId peer, Link& link, crypto::StreamChains chains) {
  const Status started = link.records.start(std::move(chains), identity().limits);
  if (!started.ok()) fail(peer, started);
  return started.ok();
}

// ---- the end that is connected to ----

void GuardedStreams::on_open(EndpointId from, Channel channel, uint64_t connection) {
  HalfOpen half{from, channel, crypto::Acceptor(identity(), nonce())};
  arm(half.until, options_.challenge);
  const auto challenge = half.acceptor.challenge();
  half_open_.erase(connection);
  half_open_.emplace(connection, std::move(half));
  say(from, channel, connection, challenge);
}

// `half` is gone afterwards.
void GuardedStreams::refuse(uint64_t connection, const HalfOpen& half, Cause cause) {
  const auto [from, channel] = std::pair(half.from, half.channel);
  refusals_.emplace_back(cause, from);
  half_open_.erase(connection);
  say(from, channel, connection, kEmpty, Frame::Sign::kReset);
}

// An end that knows the secret may connect; a rank also before it was added.
bool GuardedStreams::welcome(const HalfOpen& half, uint64_t source) const {
  const auto known = peers_.find(half.from);
  const Peer* const peer = known == peers_.end() ? nullptr : &known->second;
  if (source != uid_of(half.from) || (peer != nullptr && peer->down)) return false;
  const bool added = peer != nullptr && peer->added;
  if (!added && turns_away_) return false;
  const crypto::Role role = added ? peer->role : crypto::Role::kRank;
  if (half.acceptor.peer_role() != role) return false;
  if (peer == nullptr || peer->key == kUnknownKey || peer->key == half.acceptor.peer_key()) {
    return true;
  }
  guarded::log_impostor(peer_text(half.from));
  return false;
}

void GuardedStreams::on_hello(uint64_t connection, HalfOpen& half, const Frame& message) {
  if (message.size() != crypto::kGuardedHelloSize ||
      half.acceptor.check_hello(std::span<const std::byte, crypto::kGuardedHelloSize>(
          message.data(), crypto::kGuardedHelloSize)) != HandshakeError::kNone) {
    return refuse(connection, half, Cause::hello_refused);
  }
  const EndpointId from = half.from;
  const auto channel = static_cast<Channel>(wire::load<uint8_t>(&message[6]));
  if (wire::load<uint32_t>(message.data()) != kHelloMagic || channel != half.channel ||
      wire::load<uint64_t>(&message[16]) != uid_of(self_) ||
      !welcome(half, wire::load<uint64_t>(&message[8]))) {
    return refuse(connection, half, Cause::hello_refused);
  }
  Link& link = link_of(from, channel);
  const bool ours_wins = link.phase == Phase::kAttempt && link.hello_sent && self_ < from;
  const bool yield = ours_wins || link.phase == Phase::kOpen || link.phase == Phase::kEnded;
  crypto::AckBytes ack;
  if (half.acceptor.answer(ack_head(yield ? kYield : kAccepted, channel, self_), ack) !=
      HandshakeError::kNone) {
    return refuse(connection, half, Cause::hello_refused);
  }
  half.answered = true;
  arm(half.until, options_.challenge);
  if (yield) {
    half_open_.erase(connection);
  } else {
    // Act as if it were open already: a decision that the two ends have made is not made again.
    give_up(from, channel);
    link.phase = Phase::kYielded;
    link.awaits_confirm = true;
    arm(link.deadline, options_.challenge);
  }
  say(from, channel, connection, ack);
}

void GuardedStreams::on_confirm(uint64_t connection, HalfOpen& half, const Frame& message) {
  if (message.size() != crypto::kConfirmSize ||
      half.acceptor.check_confirm(std::span<const std::byte, crypto::kConfirmSize>(
          message.data(), crypto::kConfirmSize)) != HandshakeError::kNone) {
    return refuse(connection, half, Cause::hello_refused);
  }
  const auto [from, channel] = std::pair(half.from, half.channel);
  Link& link = link_of(from, channel);
  const bool late = link.phase == Phase::kOpen || link.phase == Phase::kEnded;
  if (late || !welcome(half, uid_of(from))) {
    return refuse(connection, half, Cause::hello_refused);
  }
  peers_[from].key = half.acceptor.peer_key();
  crypto::StreamChains chains = half.acceptor.chains();
  half_open_.erase(connection);
  give_up(from, channel);
  link.connection = connection;
  if (start(from, link, std::move(chains))) adopt(from, channel);
}

}  // namespace mcast::sim
