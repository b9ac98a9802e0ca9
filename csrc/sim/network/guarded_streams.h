// Streams of a guarded endpoint: each connection, one per peer and channel, begins with the four
// messages of crypto/handshake.h and then carries records (crypto/stream_guard.h). The rules for
// which peers connect, which of two simultaneous attempts is used, and how a connection ends are
// those of TCP (transport/udp/tcp_guarded_handshake.h), so that one simulated cluster or world
// tests both.
//
// Frames that wait for a handshake wait as plaintext; others are sealed when they are sent, since
// the medium keeps their order. Opening a connection takes one byte, which stands for its SYN; so
// does the RST of a refusal.
//
// Not modelled: places of half-open connections, the limit on guests, stripes. Threads: one. Pure:
// time, random numbers and the medium belong to its owner.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "crypto/handshake.h"
#include "sim/network/streams.h"
#include "transport/guarded/records.h"

namespace mcast::sim {

inline constexpr crypto::PublicKey kUnknownKey{};

struct GuardOptions {
  std::shared_ptr<const crypto::Identity> identity;
  uint64_t seed = 1;  // for nonces
  // `challenge`: until the other end has sent its Challenge, or has proved itself. `answer`: until
  // it has replied, or refusals count as its end.
  Nanos challenge = 2 * kSecond, answer = 20 * kSecond;
};

// Totals of the bytes that one endpoint has sent.
struct GuardTotals {
  uint64_t handshakes = 0, handshake_bytes = 0;  // messages, including those that open and refuse
  uint64_t records = 0, record_bytes = 0;        // bytes in addition to those of the frames
  uint32_t epochs = 0;                           // highest epoch that any direction has reached

  void add(const GuardTotals& other) {
    handshakes += other.handshakes;
    handshake_bytes += other.handshake_bytes;
    records += other.records;
    record_bytes += other.record_bytes;
    epochs = std::max(epochs, other.epochs);
  }
};

class GuardedStreams {
 public:
  // Interface to its owner and the medium.
  struct Way {
    std::function<Nanos()> now;
    std::function<void(EndpointId to, Channel channel, Frame message)> carry;
    std::function<void(Nanos at)> look_at;  // requests a call of run_timers() at that time
    // The connections with this peer have ended, on this side first.
    std::function<void(EndpointId peer, const Status& why)> lost;
    std::function<void()> closed;  // everything has been sent, including the goodbyes
  };
  using Refusals = std::vector<std::pair<Cause, EndpointId>>;

  GuardedStreams(const GuardOptions& options, EndpointId self, Way way);

  const crypto::Identity& identity() const { return *options_.identity; }
  const GuardTotals& totals() const { return totals_; }

  // As Stream::add_peer(); a key of zeros means not known.
  void add(EndpointId peer, const crypto::PublicKey& key, crypto::Role role);
  // As Stream's.
  void keep_trying(EndpointId peer, Nanos until) { peers_[peer].keep_trying = until; }
  // From now on only added peers may connect.
  void turn_away() { turns_away_ = true; }

  void send(EndpointId to, Channel channel, Frame frame);
  // Bytes of frames that wait for a handshake.
  size_t waiting(EndpointId to, Channel channel) const;
  // Returns the frame in a received message, valid as long as the message and until the next call;
  // empty if the message was not a frame.
  std::optional<ConstBytes> take(EndpointId from, Channel channel, const Frame& message);
  // The medium reports that this peer has ended. Returns true if the peer announced it, gracefully.
  bool end(EndpointId peer, bool graceful);
  void run_timers();

  // Sends the goodbye on all connections; returns false if frames still wait for a handshake. From
  // then on take() and run_timers() are called without the owner's poll, and Way::closed reports
  // the end.
  bool close();
  bool closing() const { return closing_; }
  // A peer has sent plaintext.
  void refuse_clear(EndpointId from) { refusals_.emplace_back(Cause::hello_refused, from); }
  // Refusals since the last call, with their senders.
  Refusals take_refusals() { return std::exchange(refusals_, {}); }

 private:
  enum class Phase : uint8_t {
    kIdle,
    kAttempt,  // opened by this end
    kRetry,    // refused; the next attempt is at `deadline`
    kYielded,  // the peer is opening a connection, or has to prove itself
    kOpen,
    kEnded,
  };
  struct Link {
    Phase phase = Phase::kIdle;
    uint64_t connection = 0;
    std::unique_ptr<crypto::Connector> connector;
    bool hello_sent = false, awaits_confirm = false;
    std::deque<Frame> waiting;
    guarded::Records records;
    bool goodbye_sent = false, goodbye_heard = false;
    Nanos deadline = kNever, failing_since = kNever, backoff = 0;
  };
  struct Peer {
    crypto::PublicKey key{};
    crypto::Role role = crypto::Role::kRank;
    bool added = false, down = false;
    Nanos keep_trying = 0;
    std::array<Link, kChannels> links;
  };
  // A connection that was accepted and is not open yet.
  struct HalfOpen {
    EndpointId from = 0;
    Channel channel = Channel::kControl;
    crypto::Acceptor acceptor;
    bool answered = false;
    Nanos until = kNever;
  };

  Link& link_of(EndpointId peer, Channel channel) {
    return peers_[peer].links[static_cast<size_t>(channel)];
  }
  void say(EndpointId to, Channel channel, uint64_t connection, ConstBytes bytes,
           Frame::Sign sign = Frame::Sign::kBytes);
  crypto::HandshakeNonce nonce();
  void arm(Nanos& deadline, Nanos patience);

  std::optional<ConstBytes> hear(EndpointId from, Channel channel, const Frame& message);
  // guarded_handshake.cpp
  void connect(EndpointId to, Channel channel);
  void give_up(EndpointId to, Channel channel);
  void retry(EndpointId to, Channel channel);
  void run_timer(EndpointId to, Channel channel);
  void on_open(EndpointId from, Channel channel, uint64_t connection);
  void on_challenge(EndpointId from, Channel channel, const Frame& message);
  void on_ack(EndpointId from, Channel channel, const Frame& message);
  void on_hello(uint64_t connection, HalfOpen& half, const Frame& message);
  bool welcome(const HalfOpen& half, uint64_t source) const;
  void on_confirm(uint64_t connection, HalfOpen& half, const Frame& message);
  void refuse(uint64_t connection, const HalfOpen& half, Cause cause);
  void failed(EndpointId peer, crypto::HandshakeError error);
  bool start(EndpointId peer, Link& link, crypto::StreamChains chains);

  // guarded_streams.cpp
  void adopt(EndpointId peer, Channel channel);
  void seal(EndpointId to, Channel channel, ConstBytes frame);
  std::optional<ConstBytes> open(EndpointId from, Channel channel, const Frame& record);
  void fail(EndpointId peer, const Status& why);

  const GuardOptions options_;
  const EndpointId self_;
  const Way way_;
  Rng rng_;
  std::map<EndpointId, Peer> peers_;
  std::map<uint64_t, HalfOpen> half_open_;  // by connection
  uint64_t attempts_ = 0;
  std::vector<std::byte> scratch_;  // an opened frame
  Refusals refusals_;
  GuardTotals totals_;
  Nanos next_timer_ = kNever, looks_at_ = kNever;
  bool turns_away_ = false, closing_ = false, closed_ = false;
};

// For messages: as endpoint_text() of transport/udp.
std::string peer_text(EndpointId peer);

}  // namespace mcast::sim
