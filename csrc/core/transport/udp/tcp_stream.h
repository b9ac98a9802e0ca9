// The Stream endpoint over TCP: a listening socket per interface, and for each (peer, channel) one
// connection, made by the first send; on a stripe, for bulk channels, one per interface. See
// stream_wire.h for the format of the connections.
//
// The peer's uid is its identity: a connection is accepted only if its Hello names our uid, and
// belongs to the PeerId of the uid that the Hello gives as its source. Frames flow only after the
// HelloAck, so a connection that loses a simultaneous connect has carried none, and no frame can be
// lost or duplicated.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "transport/guests.h"
#include "transport/refused_connections.h"
#include "transport/timer_watch.h"
#include "transport/transport.h"
#include "transport/udp/half_open.h"
#include "transport/udp/netif.h"
#include "transport/udp/options.h"
#include "transport/udp/source_filter.h"
#include "transport/udp/tcp_connection.h"
#include "transport/udp/tcp_listeners.h"
#include "transport/udp/tcp_pool.h"

namespace mcast {

// One read, and in front of it the partial frame of the read before.
inline constexpr size_t kScratchSize = 256 * 1024 + kMaxBulkFrame + kFramePrefix + kFrameNumber;
inline constexpr size_t kOpenedSize = kMaxBulkFrame + kFrameNumber;
// Connections accepted in one poll of a listener, so that a flood of them does not hold up the
// lane.
inline constexpr size_t kAcceptsPerPoll = 64;

// A line is a (channel, stripe) pair; the control channel has stripe 0 only.
inline size_t line_of(Channel channel, size_t stripe) {
  return stripe * kChannels + static_cast<size_t>(channel);
}

class TcpStream final : public Stream {
 public:
  // `stats` outlives the endpoint.
  explicit TcpStream(TcpStats& stats)
      : stats_(stats), listeners_(epoll_), half_open_(epoll_), pool_(epoll_), refusals_(stats) {}
  // `stripe`: one interface or several.
  Status open(const UdpTransportOptions& options, std::span<const Interface> stripe,
              const Interface& loopback);

  // Before the first poll; `allow` outlives the endpoint.
  void restrict_to(const SourceFilter& allow) { allow_ = &allow; }

  StreamAddress address(bool loopback) const override;
  PeerId add_peer(const StreamAddress& address) override;
  std::vector<PeerId> expect(std::span<const uint64_t> uids) override;
  void keep_trying(PeerId peer, Nanos until) override;
  void send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(PeerId peer, Channel channel) const override;
  size_t poll(StreamSink& sink, Nanos now) override;
  bool close_peers(Nanos now) override;

  int poll_fd() const noexcept { return epoll_.fd(); }  // readable if poll() has something to do
  // Time from the last poll() until its next timer is due; 0 if it should be called immediately.
  Nanos until_timer() const noexcept;
  void abandon() noexcept { epoll_.abandon_watched(); }

 private:
  friend class TcpGuardedHandshake;  // a part of this class, for guarded endpoints only
  enum class Phase {
    kIdle,
    kAttempt,  // `connection` is opened here and not yet accepted
    kRetry,    // an attempt failed, the next is at `deadline`
    kYielded,  // the peer reported that it is opening a connection itself
    kOpen,
    kEnded,  // goodbye sent, or the peer is down
  };
  struct Link {
    Phase phase = Phase::kIdle;
    TcpConnection* connection = nullptr;
    SendQueue queue;
    bool goodbye_queued = false;
    bool awaits_confirm = false;  // kYielded: accepted, the connector has yet to prove its key
    bool deadline_set = false;    // set by the poll after the phase began: send() has no clock
    Nanos deadline = kNever;
    Nanos trying_since = kNever;  // time of the first attempt, as the next poll saw it
    bool warned = false;          // a warning about failing attempts was logged
    Nanos backoff = 0;
    int error = 0;  // errno of the last attempt

    // Bytes that the kernel has not taken.
    size_t unsent() const {
      const bool guarded = connection != nullptr && connection->guard != nullptr;
      return queue.size() + (guarded ? connection->guard->waiting().size() : 0);
    }
    // Returns true if a frame may be sealed from where it lies, since the queue is empty.
    bool takes_sealed() const {
      return phase == Phase::kOpen && connection->guard != nullptr && queue.empty() &&
             !connection->guard->full();
    }
    // Events that an open connection waits for.
    uint32_t interest() const {
      return (connection->read_done || connection->held ? 0u : EPOLLIN) |
             (unsent() == 0 ? 0u : EPOLLOUT);
    }
    // Returns true if the connection or attempt of endpoint `self` is used instead of the one that
    // `source` requests.
    bool stays(uint64_t self, uint64_t source) const {
      const bool ours_wins = phase == Phase::kAttempt &&
                             connection->state == TcpConnection::State::kHelloSent && self < source;
      return ours_wins || phase == Phase::kOpen || phase == Phase::kEnded;
    }
  };
  struct Peer {
    StreamAddress address;
    bool down = false;
    bool stranger = false;    // not added by the caller
    bool met = false;         // a connection to it has been open
    Nanos keep_trying = 0;    // attempts continue until then, if the liveness limit ends earlier
    size_t stripes = 0;       // number of its interfaces; 0 if it is known from its Hello only
    std::vector<Link> links;  // by line
    std::array<uint32_t, kChannels> next_out{}, next_in{};  // frame numbers; they wrap around

    // When attempts to open this link end; why the last one, from one of these interfaces, failed.
    Nanos give_up_at(size_t line, Nanos liveness_limit, Nanos now);
    std::string connect_error(size_t line, std::span<const Interface> stripe) const;
  };
  struct Report {
    PeerId peer;
    Status why;
    bool graceful;
    bool stranger;
  };

  struct Taker;  // takes the frames of a connection

  Link& link_of(const TcpConnection& c) {
    return peers_[c.peer].links[line_of(c.channel, c.stripe)];
  }
  size_t choose_line(const Peer& peer, Channel channel, size_t bytes);

  void connect_link(PeerId id, size_t line);
  void attempt_failed(PeerId id, size_t line, int error);
  void attempt_failed(const TcpConnection& c, int error) {
    attempt_failed(c.peer, line_of(c.channel, c.stripe), error);
  }
  void say_hello(TcpConnection& c);
  void on_hello(HalfOpen::Place& place);
  void accept_hello(HalfOpen::Place& place, const Hello& hello);
  void on_hello_ack(TcpConnection& c);
  void adopt(TcpConnection& c);
  PeerId new_peer(const StreamAddress& address);
  PeerId new_guest(const Hello& hello, Source from);

  void accept_all(const TcpListeners::Listener& listener);
  void service(TcpConnection& c, uint32_t ready, StreamSink& sink, size_t& events);
  void read(TcpConnection& c, StreamSink& sink, size_t& events);
  // Handles one frame that has arrived.
  FrameTake deliver(TcpConnection& c, ConstBytes frame, StreamSink& sink, size_t& events);
  void after_scan(TcpConnection& c, const FrameScan& scan);
  // Continues reading connections whose frames waited for those that have arrived now.
  void resume_held(PeerId id, Channel channel, StreamSink& sink, size_t& events);
  void input_ended(TcpConnection& c, TcpConnection::Io how);
  void flush(TcpConnection& c);
  void end_link(TcpConnection& c);
  void fail_peer(PeerId id, Status why, bool graceful = false);
  void run_timers(Nanos now);
  void run_link_timer(PeerId id, size_t line, Nanos now);
  void warn_of_failing(PeerId id, size_t line, Nanos now);

  TcpStats& stats_;
  UdpTransportOptions options_;
  std::vector<Interface> stripe_;
  uint64_t uid_ = 0;
  Epoll epoll_;
  TcpListeners listeners_;
  HalfOpen half_open_;
  const SourceFilter* allow_ = nullptr;

  std::vector<Peer> peers_;
  std::unordered_map<uint64_t, PeerId> by_uid_;
  TcpPool pool_;
  size_t turn_ = 0;  // which connection of the stripe comes first among equals
  Guests guests_;
  std::vector<Report> reports_;
  RefusedConnections refusals_;
  std::unique_ptr<std::byte[]> scratch_;  // then room for an opened frame, if guarded

  struct {
    RateLimit limits{10 * kSecond}, failing{10 * kSecond};
  } warnings_;
  Nanos now_ = 0;  // time of the last poll
  TimerWatch timers_;
  bool closing_ = false;
};

}  // namespace mcast
