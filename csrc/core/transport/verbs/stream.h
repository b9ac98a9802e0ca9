// The Stream endpoint over reliable connections: one per peer that is needed, made by the first
// send and shared by the three channels, which alternate piece by piece, control first.
//
// The peer's uid is its identity, as with TCP: a connection is accepted only if its Hello names our
// uid, and belongs to the PeerId of the uid that the Hello gives as its source. Frames flow only on
// an established connection, so a connection that loses a simultaneous connect has carried none.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/guests.h"
#include "transport/timer_watch.h"
#include "transport/transport.h"
#include "transport/verbs/connection.h"
#include "transport/verbs/expose.h"

namespace mcast::verbs {

inline constexpr size_t kConnectionsPerQueue = 64;  // maximum per completion queue

class RcStream final : public Stream,
                       public RemoteMemory,
                       private Connection::Owner,
                       private CmHandler {
 public:
  RcStream(Device& device, CmChannel& cm, RcStats& stats)
      : device_(device), cm_(cm), stats_(stats), refusals_(stats) {}
  ~RcStream() override;
  RcStream(const RcStream&) = delete;
  RcStream& operator=(const RcStream&) = delete;
  Status open(const VerbsOptions& options);

  StreamAddress address(bool loopback) const override;
  PeerId add_peer(const StreamAddress& address) override;
  std::vector<PeerId> expect(std::span<const uint64_t> uids) override;
  void keep_trying(PeerId peer, Nanos until) override;
  void send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(PeerId peer, Channel channel) const override;
  size_t poll(StreamSink& sink, Nanos now) override;
  bool close_peers(Nanos now) override;
  // Guarded endpoints have none: they register no memory for others.
  RemoteMemory* remote_memory() override { return options_.identity ? nullptr : this; }

  // RemoteMemory
  Result<RemoteGrant> expose(const Slice& block, size_t offset) override;
  size_t max_read() const override { return kReadBytes; }
  bool read(PeerId peer, uint64_t address, uint32_t key, size_t length, uint64_t token) override;

  // Returns true if a completion is there.
  bool ready();
  // Requests an event for the next completion; returns false if there is one already.
  bool arm();
  Nanos until_timer() const noexcept;
  void abandon() noexcept;

 private:
  friend class RcGuardedHandshake;  // a part of this class, for guarded endpoints only
  enum class Phase {
    kIdle,
    kAttempt,    // `connection` is opened here and not established
    kRetry,      // an attempt failed, the next is at `deadline`
    kYielded,    // the peer is opening a connection itself
    kAccepting,  // `connection` was opened by the peer
    kOpen,
    kEnded,
  };
  struct Outgoing {
    std::vector<std::byte> bytes;
    size_t sent = 0;
  };
  struct Peer {
    StreamAddress address;
    Phase phase = Phase::kIdle;
    Connection* connection = nullptr;
    std::array<std::deque<Outgoing>, kChannels> queues;
    std::array<size_t, kChannels> queued{};
    size_t turn = 0;  // the bulk channel that sends next
    bool goodbye_due = false;
    uint32_t confirms = 0;    // kYielded: serial of its future connection, half open; 0: none
    bool timed = false;       // `since` and `deadline` are set: send() has no clock
    Nanos since = kNever;     // time of the first attempt
    Nanos keep_trying = 0;    // attempts continue until then, if the liveness limit ends earlier
    Nanos deadline = kNever;  // time of the next retry, or end of the phase
    Nanos backoff = 0;
    Status last;            // why the last attempt failed
    bool stranger = false;  // not added by the caller
  };
  struct Report {
    PeerId peer;
    Status why;
    bool graceful;
    bool stranger;
  };
  struct Read {  // one RDMA Read in flight
    uint64_t token = 0;
    size_t length = 0;
  };

  // stream_connect.cpp
  void on_cm_event(const CmEvent& event) override;  // of the listener
  void on_connection_event(Connection& connection, const CmEvent& event) override;
  void on_request(const CmEvent& event);
  void refuse(rdma_cm_id* id, Refusal reason);
  void start(PeerId id);
  void advance(Connection& c, const CmEvent& event);
  void attempt_failed(PeerId id, Status why);
  void established(Connection& c);
  void disconnected(Connection& c);
  void run_timers(Nanos now);
  Result<std::shared_ptr<CompletionQueue>> queue_with_room();
  Connection* make_connection(PeerId peer, Connection::State state);
  void retire(Connection& c);

  // stream.cpp
  size_t drain(StreamSink& sink);
  void on_completion(const ibv_wc& wc, StreamSink& sink);
  void on_message(Connection& c, const ibv_wc& wc, StreamSink& sink);
  bool put_together(Connection& c, const Message& m, ConstBytes piece, StreamSink& sink);
  void on_read(Connection& c, const ibv_wc& wc, StreamSink& sink);
  void broken(Connection& c);
  void pump(PeerId id);
  void return_credits(Connection& c);
  void fail_peer(PeerId id, Status why, bool graceful = false);
  void violation(Connection& c, const std::string& what);
  // `guest`: source of a peer that nobody has added; if there are too many guests, one of them is
  // displaced. Null if the peer is added.
  PeerId new_peer(const StreamAddress& address, const Source* guest);
  std::string text(PeerId id) const;

  Device& device_;
  CmChannel& cm_;
  RcStats& stats_;
  VerbsOptions options_;
  std::optional<Exposures> exposures_;
  RefusedConnections refusals_;
  uint64_t uid_ = 0;
  struct {
    rdma_cm_id* id = nullptr;
    Endpoint at;
    Guests guests;
    std::unordered_set<uint64_t> told_later;  // guarded: uids refused with kLater
  } listener_;
  std::vector<std::shared_ptr<CompletionQueue>> queues_;  // the other holders are their connections
  std::vector<Peer> peers_;
  std::unordered_map<uint64_t, PeerId> by_uid_;
  std::unordered_map<uint32_t, std::unique_ptr<Connection>> connections_;  // by serial
  std::vector<std::unique_ptr<Connection>> graveyard_;
  std::unordered_map<uint64_t, Read> reads_;  // by serial and read entry
  std::vector<Report> reports_;
  uint32_t next_serial_ = 1;
  bool closing_ = false;
  bool abandoned_ = false;
  Nanos now_ = 0;
  TimerWatch timers_;
};

}  // namespace mcast::verbs
