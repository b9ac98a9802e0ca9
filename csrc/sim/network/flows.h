// Streams as packets on the fabric's links: a window that grows and is halved by losses (Reno),
// acknowledgements on the way back, retransmission of gaps. Both ends of a stream are in one
// record; an end learns of the other by trains only, except for the frames' bytes, which are kept
// at the sender and handed over when all of their segments are there. A frame may be a length only:
// it takes its time on the links and no memory.
//
// Not modelled: the establishment of connections, other congestion controls, options. A million
// idle streams cost a few hundred bytes each. Threads: one.
#pragma once

#include <algorithm>
#include <deque>
#include <set>
#include <unordered_map>
#include <vector>

#include "sim/network/fabric.h"
#include "sim/network/fifo.h"
#include "sim/network/flow_options.h"
#include "sim/network/streams.h"

namespace mcast::sim {

class Flows final : public Streams {
 public:
  // All but the options must outlive it. Links must have a delay.
  Flows(const FlowOptions& options, Fabric& fabric, EventQueue& events, TrainPool& trains,
        StreamsOwner& owner)
      : options_(options), fabric_(fabric), events_(events), trains_(trains), owner_(owner) {}

  void send(EndpointId from, EndpointId to, Channel channel, Frame frame) override;
  // Sends a frame of `bytes` bytes without contents; the receiver's side of the owner is given
  // `note` when the last byte is there, and counts as having read them immediately. bytes > 0.
  void send_length(EndpointId from, EndpointId to, Channel channel, uint64_t bytes, uint64_t note);
  size_t queued(EndpointId from, EndpointId to, Channel channel) const override;
  void on_taken(EndpointId from, EndpointId to, Channel channel, size_t bytes) override;
  void cut(EndpointId a, EndpointId b) override;
  void close(EndpointId from, EndpointId to) override;
  void hold(EndpointId endpoint, bool held) override;
  // Like hold(), for traffic between these two; may be switched on and off any number of times.
  void hold_pair(EndpointId a, EndpointId b, bool held);
  void drop(EndpointId endpoint) override;
  void on_event(EventKind kind, uint32_t index) override;
  void on_train(const TrainRef& train, uint64_t mask) override;
  void on_departure(const Train& train) override;

  struct Totals {
    uint64_t segments = 0, again = 0, timeouts = 0, halvings = 0;
    uint64_t cut = 0;  // trains and frames of a host that arrived while their pair was held
  };
  const Totals& totals() const { return totals_; }
  size_t streams() const { return flows_.size(); }

 private:
  // Sent, and not yet acknowledged together with all before it.
  struct Segment {
    uint32_t bytes = 0;
    uint64_t serial = 0;   // of its last transmission
    bool arrived = false;  // known at the receiver
    bool acked = false, lost = false;
  };
  struct Waiting {
    Frame frame;
    uint64_t end = 0;               // of the stream's bytes
    uint64_t length = 0, note = 0;  // of a frame that is a length only
  };
  struct Sender {
    uint64_t cut = 0;  // bytes that were divided into segments
    Fifo<Segment> segments;
    uint64_t base = 0;       // number of the first of `segments`
    uint64_t in_flight = 0;  // bytes
    uint32_t lost = 0;       // segments that wait to be retransmitted
    size_t at_interface = 0;
    double window = 0, threshold = 1e18;
    uint64_t serial = 0, recover = 0;  // transmissions; losses before `recover` halved it
    double round_trip = 0;             // ns, smoothed; 0 if not known
    unsigned tries = 0;
    Nanos timer = kNever, pushed = kNever;  // when it is due, and when an event checks it
  };
  struct Flow {
    EndpointId from = 0, to = 0;
    Channel channel = Channel::kControl;
    TrafficClass what = TrafficClass::kControl;
    bool broken = false;
    Place place, far;
    Route out, back;
    Fifo<Waiting> frames;   // not handed over
    uint64_t accepted = 0;  // bytes of all frames so far
    Sender sender;
    // The receiver.
    uint64_t received = 0;   // segments below it have all arrived
    uint64_t delivered = 0;  // their bytes
    size_t unread = 0;       // bytes handed over and not taken
  };
  struct Local {  // between endpoints of one host, or the end of a stream
    EndpointId from = 0, to = 0;
    Channel channel = Channel::kControl;
    Frame frame;
    bool end = false;
    uint64_t length = 0, note = 0;
  };

  Flow& flow_of(EndpointId from, EndpointId to, Channel channel);
  Flow* find(EndpointId from, EndpointId to, Channel channel);
  void push_local(Local local);
  bool reachable(const Flow& flow);
  bool pair_held(EndpointId a, EndpointId b) const {
    return !held_pairs_.empty() && held_pairs_.count(std::minmax(a, b)) > 0;
  }
  void let_locals_go_on();
  void break_flow(Flow& flow);
  bool all_handed_over(EndpointId from, EndpointId to);

  void pump(uint32_t index);
  void go_on(uint32_t index);
  bool send_lost(uint32_t index);
  bool send_new(uint32_t index);
  TrainRef begin_train(uint32_t index, uint64_t segment);
  void transmit(uint32_t index, const TrainRef& train);

  void on_data(uint32_t index, const Train& train, uint64_t mask);
  void hand_over(Flow& flow);
  void acknowledge(uint32_t index, const Train& train, uint64_t mask);
  void on_ack(uint32_t index, const Train& ack);
  uint64_t take_acks(Flow& flow, const Train& ack);
  uint64_t settle(Flow& flow, Segment& segment);
  bool find_losses(Flow& flow, const Train& ack);
  void arm(uint32_t index);
  void on_timer(uint32_t index);

  FlowOptions options_;
  Fabric& fabric_;
  EventQueue& events_;
  TrainPool& trains_;
  StreamsOwner& owner_;
  std::deque<Flow> flows_;
  std::unordered_map<uint64_t, uint32_t> index_;  // by stream_key()
  Numbered<Local> locals_;
  std::vector<Local> held_locals_;  // arrived while one of their ends was held
  std::set<std::pair<EndpointId, EndpointId>> closing_;
  std::set<EndpointId> held_, dead_;
  std::set<std::pair<EndpointId, EndpointId>> held_pairs_;  // the lower one first
  Totals totals_;
};

}  // namespace mcast::sim
