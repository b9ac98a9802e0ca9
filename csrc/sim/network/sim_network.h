// A simulated network in virtual time: many transports in one thread, every loss, delay and reorder
// drawn from one seed, so that a failing schedule can be repeated. It models the conditions that
// the protocol must survive: lossy multicast with bounded receive queues, links with rates and
// queues, streams that may break, processes that stop or die. Endpoints and their faults are here;
// the network between them is a sim::Fabric.
//
// Threads: one. Time moves only by advance().
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "base/rng.h"
#include "sim/network/sim_options.h"
#include "sim/network/sim_transport.h"
#include "transport/transport.h"

namespace mcast {

class SimNetwork final : private sim::FabricSink, private sim::StreamsOwner {
 public:
  explicit SimNetwork(const SimOptions& options);
  ~SimNetwork() override;

  // Makes an endpoint on the next host that has room; its index is the order of creation. The
  // network must outlive it.
  std::unique_ptr<SimTransport> attach();
  // With a fabric: at a place that the caller chooses.
  std::unique_ptr<SimTransport> attach(const sim::Place& place);

  // Delivers everything due at or before `now`; `now` never goes back.
  void advance(Nanos now);
  // The same, but no further than to the first time at which an endpoint has something to take;
  // returns that time, or `limit`.
  Nanos advance_to_arrival(Nanos limit);
  Nanos now() const { return events_.now(); }
  // Returns true if this endpoint has something that it has not taken yet.
  bool waiting(size_t endpoint) const;

  // For callers that drive endpoints event by event, without advance().
  class Listener {
   public:
    virtual ~Listener() = default;
    // Called for every event that would wake this endpoint's wait(): it has something to take, or
    // it may send again after a refusal.
    virtual void on_news(size_t endpoint) = 0;
    // The time of a turn_at() has come.
    virtual void on_turn(uint32_t what) = 0;
  };
  // The listener must outlive the last step(); null: none.
  void set_listener(Listener* listener) { listener_ = listener; }
  void turn_at(Nanos at, uint32_t what) {
    const sim::Driving nobody(options_.meter);
    events_.push(at, sim::EventKind::kTurn, what);
  }
  // Runs `action` when the time comes.
  void schedule(Nanos at, std::function<void()> action);
  // Time of the next event, kNever if there is none; step() handles it. wait_until() lets time
  // pass, up to which no event may be left.
  Nanos next() const { return events_.next(); }
  void step() { on_event(events_.pop()); }
  void wait_until(Nanos now) { events_.move_to(now); }
  // Memory that the network allocates while a rank is driven belongs to no rank. Null: no
  // accounting.
  void set_meter(sim::HeapMeter* meter) { options_.meter = meter; }
  // The simulation ends: endpoints that are destroyed are not reported to any other.
  void end() { ended_ = true; }

  // Decides about one datagram to one receiver when it is sent, before the random faults do; the
  // sender is among the receivers. Empty: deliver normally. While it is set, datagrams are not
  // joined to trains.
  enum class Verdict : uint8_t { kPass, kDrop, kDeliverClean };
  using DatagramHook = std::function<Verdict(size_t from, size_t to, ConstBytes datagram)>;
  void set_datagram_hook(DatagramHook hook) { hooks_.datagram = std::move(hook); }
  // The same for frames: false drops the frame (a lossless stream with a gap: only for requests
  // whose reply has a timer). Frames of guarded endpoints are seen before they are sealed: the hook
  // acts as their sender.
  using FrameHook = std::function<bool(size_t from, size_t to, Channel, ConstBytes frame)>;
  void set_frame_hook(FrameHook hook) { hooks_.frame = std::move(hook); }
  // An attacker on the path of guarded streams: sees each message of a handshake and each record
  // when it is sent, and may change it; false drops it.
  using RecordHook = std::function<bool(size_t from, size_t to, Channel, sim::Frame& message)>;
  void set_record_hook(RecordHook hook) { hooks_.record = std::move(hook); }
  // Returns the class of a datagram for the accounts; without it all are data. The layer that knows
  // the formats sets it.
  using Classifier = sim::TrafficClass (*)(ConstBytes datagram);
  void set_classifier(Classifier classifier) { classifier_ = classifier; }
  // Puts raw bytes into an endpoint's datagram queue (stale, forged, foreign packets), as if they
  // came from that endpoint's host; SIZE_MAX: the source is unknown.
  void inject(size_t to, ConstBytes datagram, size_t from = SIZE_MAX);
  // Multicasts this datagram to each address that the endpoint has joined, from outside; returns
  // how often it arrived, whether or not the endpoint's queue had room.
  uint64_t flood(size_t to, ConstBytes datagram);
  // The same at a port on which no socket listens, this many times; no effect if the endpoint has
  // joined no address, unless they reach all hosts.
  void flood_beside(size_t to, uint64_t datagrams, bool broadcast = false);
  // Injects a frame as `from` itself would have made it, sealed or not; behind everything that has
  // arrived.
  void inject_frame(size_t from, size_t to, Channel channel, ConstBytes frame);
  // Guarded endpoints: injects bytes of an attacker on the path.
  void inject_record(size_t from, size_t to, Channel channel, sim::Frame message);
  SimFaults& faults() { return options_.faults; }

  // With a fabric: background traffic, bytes without contents. An endpoint that sends it sends
  // nothing else.
  void send_background(size_t from, size_t to, uint64_t bytes);

  // The process of this endpoint dies: its peers see their streams break one latency later.
  void kill(size_t endpoint);
  // The connections between these two break: bytes in flight are lost, both ends are notified, both
  // live; `b` is notified that much later (its side had nothing to send).
  void reset(size_t a, size_t b, Nanos later = 0);
  // This endpoint closes gracefully: peers learn it after all frames that it sent.
  void goodbye(size_t endpoint);
  // Isolates the endpoint: no traffic in or out, without notifying any peer. heal() lets streams
  // continue (their frames were kept, as TCP would); datagrams sent in the meantime are lost.
  void isolate(size_t endpoint);
  void heal(size_t endpoint);
  // With a fabric: the same for streams between these two alone; multicast continues.
  void cut_streams(size_t a, size_t b, bool cut);
  // Multicast from `from` no longer reaches `to` (to = SIZE_MAX: no endpoint), or does again.
  void block_multicast(size_t from, size_t to, bool block = true);

  struct Totals {
    uint64_t datagrams_sent = 0, delivered = 0, dropped = 0, overflowed = 0, duplicated = 0,
             corrupted = 0, frames = 0;
    uint64_t overflowed_data = 0;  // part of `overflowed`, without probes and floods
    uint64_t lost = 0, reordered = 0, refused = 0, blocked = 0,
             hooked = 0;  // by faults; frames: by the hook
  };
  const Totals& totals() const { return totals_; }
  uint64_t events() const { return events_.handled(); }
  sim::Fabric& fabric() { return fabric_; }
  const sim::Fabric& fabric() const { return fabric_; }
  const sim::Streams& streams() const { return *streams_; }
  // Source address of an endpoint's datagrams.
  Source source_of(size_t endpoint) const;
  // Headers of datagrams that endpoints have committed to be gathered and not flushed yet.
  std::vector<ConstBytes> unflushed() const;

 private:
  friend class SimTransport;
  struct Endpoint {
    SimTransport* transport = nullptr;  // null: gone
    sim::Place place;
    bool dead = false, isolated = false, in_burst = false;
    bool others = false;  // it sends background traffic
  };
  // One datagram that arrives later than the rest of its train.
  struct Late {
    sim::TrainRef train;
    uint64_t mask = 0;
    size_t to = 0;
  };

  void on_event(const sim::Event& event);

  // For endpoints. Returns false if the interface's queue is full.
  bool multicast(SimTransport& from, const sim::TrainRef& train);
  void ask_hook(size_t from, sim::Train& train);
  bool may_send(const SimTransport& from) const;
  void refuse(SimTransport& from);
  void let_go_on(sim::HostId host);
  void tell(size_t endpoint) {
    if (listener_ != nullptr) listener_->on_news(endpoint);
  }
  unsigned train_packets() const;
  void send_frame(size_t from, size_t to, Channel channel, sim::Frame frame);
  // sim_network_guard.cpp
  void carry(size_t from, size_t to, Channel channel, sim::Frame message);
  sim::GuardedStreams::Way way_of(size_t endpoint);

  // sim_network.cpp: arrivals
  void on_train(sim::HostId host, const sim::TrainRef& train, uint64_t mask, bool echo) override;
  void on_departure(const sim::Train& train) override;
  void on_stream_frame(sim::EndpointId from, sim::EndpointId to, Channel channel,
                       sim::Frame frame) override;
  void on_stream_closed(sim::EndpointId from, sim::EndpointId to) override;
  sim::Place place_of(sim::EndpointId endpoint) const override {
    return endpoints_[endpoint].place;
  }
  sim::TrafficClass class_of(sim::EndpointId from, Channel channel) const override;
  void on_room(sim::EndpointId from) override { tell(from); }
  void reach(size_t to, const sim::TrainRef& train, uint64_t mask);
  void judge(size_t to, const sim::TrainRef& train, unsigned packet);
  void hand_over(size_t to, const sim::TrainRef& train, uint64_t mask);
  sim::TrainRef corrupted(const sim::Train& train, unsigned packet);
  bool blocked(size_t from, size_t to) const;
  bool lose(size_t to);
  void report_down(size_t to, size_t about, bool graceful);

  SimOptions options_;
  Rng rng_;
  sim::EventQueue events_;
  sim::TrainPool trains_;
  sim::Fabric fabric_;
  std::unique_ptr<sim::Streams> streams_;
  std::vector<Endpoint> endpoints_;
  std::vector<std::vector<size_t>> at_host_;  // endpoints, by host
  std::vector<std::pair<size_t, size_t>> multicast_blocks_;
  std::set<std::pair<size_t, size_t>> told_;  // (endpoint, peer) whose end was reported to it
  struct {
    DatagramHook datagram;
    FrameHook frame;
    RecordHook record;
  } hooks_;
  Classifier classifier_ = nullptr;
  sim::Numbered<Late> late_;
  sim::Numbered<std::function<void()>> actions_;
  Totals totals_;
  uint64_t arrivals_ = 0;  // events that may concern an endpoint
  Listener* listener_ = nullptr;
  size_t refused_ = 0;  // endpoints that wait for room at their interface
  bool ended_ = false;
};

}  // namespace mcast
