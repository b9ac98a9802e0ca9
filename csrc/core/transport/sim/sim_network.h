// A simulated network in virtual time: many transports in one thread, every loss, delay and reorder
// drawn from one seed, so that a failing schedule can be run again alone. It models what the
// protocol must survive: lossy multicast with bounded receive queues and optional link rates,
// reliable streams that may break, processes that stop or die.
//
// Threads: one. Time moves only by advance().
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <vector>

#include "base/rng.h"
#include "transport/transport.h"

namespace mcast {

struct SimFaults {
  double drop = 0;       // per receiver and datagram
  double burst = 1;      // mean length of a loss burst, datagrams
  double duplicate = 0;  // `copies` more, each up to copy_delay later
  double reorder = 0;    // held back by up to reorder_delay
  double corrupt = 0;    // one bit flipped
  Nanos reorder_delay = kMilli;
  int copies = 1;
  Nanos copy_delay = kMilli;
};

struct SimOptions {
  uint64_t seed = 1;
  size_t max_datagram = 1472;
  size_t receive_budget = 256 * 1024;  // payload bytes one endpoint queues
  Nanos latency = 20 * kMicro;         // datagrams
  Nanos jitter = 5 * kMicro;
  Nanos stream_latency = 50 * kMicro;
  double rate = 0;                // link speed, bytes per second each way; 0: unlimited
  double stream_rate = 0;         // bytes per second of each bulk stream; 0: unlimited
  size_t send_queue = 64 * 1024;  // bytes a sender may have waiting when there is a rate
  size_t gather_from = SIZE_MAX;  // see Datagram; the memory is then read at flush()
  SimFaults faults;
};

class SimTransport;

class SimNetwork {
 public:
  explicit SimNetwork(const SimOptions& options);
  ~SimNetwork();

  // A new endpoint; its index is the order of creation. The network must outlive it.
  std::unique_ptr<SimTransport> attach();

  // Delivers everything due at or before `now`; `now` never goes back.
  void advance(Nanos now);
  // Time of the next delivery, kNever if nothing is under way.
  Nanos next_event() const;
  Nanos now() const { return now_; }
  // Whether something is there that this endpoint has not taken yet.
  bool waiting(size_t endpoint) const;

  // Decides about one datagram to one receiver before the random faults do. Empty: deliver
  // normally.
  enum class Verdict { kPass, kDrop, kDeliverClean };
  using DatagramHook = std::function<Verdict(size_t from, size_t to, ConstBytes datagram)>;
  void set_datagram_hook(DatagramHook hook) { datagram_hook_ = std::move(hook); }
  // The same for frames: false drops the frame (a lossless stream with a hole: only for requests
  // whose answer has a timer).
  using FrameHook = std::function<bool(size_t from, size_t to, Channel, ConstBytes frame)>;
  void set_frame_hook(FrameHook hook) { frame_hook_ = std::move(hook); }
  // Puts raw bytes into an endpoint's datagram queue (stale, forged, foreign packets).
  void inject(size_t to, ConstBytes datagram);
  void inject_frame(size_t from, size_t to, Channel channel, ConstBytes frame);
  SimFaults& faults() { return options_.faults; }

  // The process of this endpoint dies: its peers see their streams break one latency later.
  void kill(size_t endpoint);
  // The connections between these two break: what is on its way is lost, both are told, both live.
  void reset(size_t a, size_t b);
  // This endpoint closes in order: peers learn it after all frames that it sent.
  void goodbye(size_t endpoint);
  // Nothing goes in or out of this endpoint, and nobody is told; heal() lets streams continue
  // (their frames were kept, as TCP would) and datagrams of the meantime are lost.
  void isolate(size_t endpoint);
  void heal(size_t endpoint);
  // Multicast from `from` no longer reaches `to` (to = SIZE_MAX: nobody), or does again.
  void block_multicast(size_t from, size_t to, bool block = true);

  struct Totals {
    uint64_t datagrams_sent = 0, delivered = 0, dropped = 0, overflowed = 0, duplicated = 0,
             corrupted = 0, frames = 0;
    uint64_t data_dropped_chunks = 0;
  };
  const Totals& totals() const { return totals_; }
  // Headers of datagrams that endpoints have committed to be gathered and not flushed yet.
  std::vector<ConstBytes> unflushed() const;

 private:
  friend class SimTransport;
  struct Event {
    Nanos at;
    uint64_t order;
    size_t to;
    std::function<void()> run;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };

  void schedule(Nanos at, size_t to, std::function<void()> run);
  void multicast(size_t from, const MulticastAddress& address, ConstBytes datagram);
  void deliver(size_t from, size_t to, const MulticastAddress& address, ConstBytes datagram,
               Nanos sent);
  void send_frame(size_t from, size_t to, Channel channel, std::vector<std::byte> frame);
  bool blocked(size_t from, size_t to) const;
  bool lose(size_t to);
  void report_down(size_t to, size_t about, bool graceful);

  SimOptions options_;
  Rng rng_;
  Nanos now_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::vector<SimTransport*> endpoints_;
  std::vector<Nanos> tx_free_, rx_free_;
  std::vector<bool> dead_, isolated_, in_burst_;
  std::vector<std::vector<std::function<void()>>> held_;  // frames for isolated endpoints
  std::vector<std::pair<size_t, size_t>> multicast_blocks_;
  std::set<std::pair<size_t, size_t>> told_;              // (endpoint, peer) whose end it was told
  std::set<std::pair<size_t, size_t>> broken_;            // both ways
  using StreamKey = std::tuple<size_t, size_t, Channel>;  // from, to
  std::map<StreamKey, Nanos> stream_free_;
  std::map<StreamKey, size_t> stream_queued_;  // bytes that have not left
  DatagramHook datagram_hook_;
  FrameHook frame_hook_;
  Totals totals_;
};

class SimTransport final : public Transport, private Datagram, private Stream {
 public:
  SimTransport(SimNetwork* network, size_t index);
  ~SimTransport() override;

  size_t index() const { return index_; }

  const char* name() const override { return "sim"; }
  Datagram& datagram() override { return *this; }
  Stream& stream() override { return *this; }
  void wait(Nanos) override {}
  void wake() noexcept override {}
  void abandon_after_fork() noexcept override {}
  std::string describe() const override;

 private:
  friend class SimNetwork;

  size_t max_datagram(const MulticastAddress&) const override;
  size_t receive_budget() const override;
  Status join(const MulticastAddress& address) override;
  void leave(const MulticastAddress& address) override;
  using Datagram::lend;
  Bytes lend(const MulticastAddress& address, size_t size, Echo echo) override;
  void commit(size_t size) override;
  size_t gather_from() const override { return network_->options_.gather_from; }
  bool commit_gather(size_t header, const Slice& block, size_t offset, size_t length) override;
  bool flush() override;
  size_t receive(DatagramSink& sink, size_t max_bytes) override;

  StreamAddress address(bool loopback) const override;
  PeerId add_peer(const StreamAddress& address) override;
  std::vector<PeerId> expect(std::span<const uint64_t> uids) override;
  void send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(PeerId peer, Channel channel) const override {
    const auto it = network_->stream_queued_.find({index_, peer, channel});
    return it == network_->stream_queued_.end() ? 0 : it->second;
  }
  size_t poll(StreamSink& sink, Nanos now) override;
  bool close_peers(Nanos now) override;

  struct InFrame {
    size_t from;
    Channel channel;
    std::vector<std::byte> bytes;
  };
  struct Down {
    size_t peer;
    bool graceful;
  };

  SimNetwork* network_;
  size_t index_;
  std::map<MulticastAddress, int> joined_;
  std::vector<std::byte> lent_;
  MulticastAddress lent_to_;
  struct Gathered {  // committed, not read yet
    MulticastAddress to;
    std::vector<std::byte> header;
    ConstBytes payload;
    std::shared_ptr<void> memory;
  };
  std::vector<Gathered> gathered_;
  std::deque<std::vector<std::byte>> inbox_;
  size_t inbox_bytes_ = 0;
  std::deque<InFrame> frames_;
  std::deque<Down> downs_;
  bool said_goodbye_ = false;
  std::optional<std::set<PeerId>> expected_;  // nobody else is heard
};

}  // namespace mcast
