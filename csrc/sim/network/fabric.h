// The network between hosts: network interfaces with transmit queues, links, switches. It moves
// trains and does not know their contents. A switch forwards a train when its first packet is
// complete there (cut-through by packet); a host receives it when its last one is.
//
// One event moves a train through a switch: the times at all of its ports are computed together and
// kept in one record, sorted.
//
// Not modelled: shared buffers and priorities of switches, cyclic deadlock of lossless fabrics
// (routes only go up and then down), the time that joining and leaving a tree takes. Threads: one.
#pragma once

#include <functional>
#include <vector>

#include "sim/network/event_queue.h"
#include "sim/network/fifo.h"
#include "sim/network/loss.h"
#include "sim/network/numbered.h"
#include "sim/network/port.h"
#include "sim/network/routing.h"
#include "sim/network/topology.h"
#include "sim/network/trace_hash.h"
#include "sim/network/traffic.h"

namespace mcast::sim {

struct FabricOptions {
  TopologySpec topology;
  uint64_t seed = 1;
  PortSpec host_up, host_down;  // between a host and its leaf
  PortSpec inner;               // between switches, each way
  bool trees_by_source = false;
  uint32_t nic_queues = 1;  // per host and plane
  size_t nic_limit = 0;     // wire bytes that one queue takes; 0: no limit
};

// Arrival times of packets at hosts, for one class of traffic.
struct ArrivalTimes {
  Nanos first = kNever, last = kNever;  // kNever if none has arrived
};

class FabricSink {
 public:
  virtual ~FabricSink() = default;
  // The packets in `mask` of a train are complete at a host, or at the sender's own: `echo`.
  virtual void on_train(HostId host, const TrainRef& train, uint64_t mask, bool echo) = 0;
  // The interface has begun to send this train: its queue has room again.
  virtual void on_departure(const Train& train) = 0;
};

class Fabric {
 public:
  Fabric(const FabricOptions& options, EventQueue& events, FabricSink& sink);

  const FabricOptions& options() const { return options_; }
  const Topology& topology() const { return topology_; }
  Router& router() { return router_; }
  // Maximum bytes of a train: 20 us of the slowest link, so that one train does not delay another
  // for longer.
  size_t train_limit() const { return train_limit_; }
  // Sets another rate, in bytes per second, for a link on which nothing is queued.
  void set_rate(LinkId link, double rate);
  // Adds a host to a star.
  HostId grow();

  // Hands a train to the host's interface on the train's plane; its tree or its route must be set.
  // Returns false if the queue is full (ENOBUFS); then nothing happened.
  bool send(HostId from, const TrainRef& train, unsigned queue = 0);
  void on_hop(uint32_t index);  // EventKind::kHop
  void on_nic(uint32_t index);  // EventKind::kNic

  // Sets the faults of one direction of a link.
  void set_loss(LinkId link, double rate, double burst);
  Port& port(LinkId link) { return ports_[link]; }
  const Port& port(LinkId link) const { return ports_[link]; }

  const std::vector<LinkTraffic>& traffic() const { return traffic_; }
  // By endpoint: traffic it has put on its host's link, for the endpoints named by reset_traffic().
  const std::vector<AmountByClass>& sent_by() const { return sent_by_; }
  const ArrivalTimes& arrivals(TrafficClass what) const {
    return arrivals_[static_cast<size_t>(what)];
  }
  // Resets the accounts; the first `endpoints` endpoints have one each.
  void reset_traffic(size_t endpoints = 0) {
    traffic_.assign(traffic_.size(), {});
    sent_by_.assign(endpoints, {});
    arrivals_ = {};
  }
  // Receives the traffic of each link with its time; null: no timeline.
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }
  const TraceHash& trace() const { return trace_; }
  // Returns true if no train is queued or under way.
  bool idle() const { return hops_.used() == 0 && queued_ == 0; }

 private:
  // One of the ports to which a switch sends a train, or the only one of an interface.
  struct Branch {
    LinkId link = 0;
    uint64_t mask = 0;
    Passage there;  // at the link's other end
    Nanos due = 0;
  };
  struct Hop {
    TrainRef train;
    std::vector<Branch> branches;  // by due, then by port
    size_t next = 0;
  };
  struct Nic {
    std::vector<Fifo<TrainRef>> queues;
    std::vector<double> bytes;  // by queue
    uint32_t turn = 0;
    bool scheduled = false;
  };

  uint32_t nic_of(HostId host, unsigned plane) const;
  void add_links();
  void limit_trains(double rate);
  // `busy`: it has been sending until now.
  void serve(uint32_t nic, bool busy);
  void depart(HostId host, const TrainRef& train, double now);
  // Adds the packets of a train that the link takes to `hop`; `from`: the link by which it arrived,
  // which a lossless port pauses.
  void cross(Hop& hop, LinkId link, uint64_t mask, const Passage& here, LinkId from);
  void at_switch(const TrainRef& train, const Branch& in);
  void start(uint32_t hop);
  void arrive(const TrainRef& train, const Branch& branch);

  FabricOptions options_;
  EventQueue& events_;
  FabricSink& sink_;
  Topology topology_;
  Router router_;
  std::vector<Port> ports_;
  std::vector<LinkTraffic> traffic_;
  std::vector<AmountByClass> sent_by_;
  std::array<ArrivalTimes, kTrafficClasses> arrivals_;
  std::vector<uint32_t> loss_of_;  // by link, index or kNone
  std::vector<Loss> losses_;
  std::vector<Nic> nics_;  // by plane and host; by host for a star that grows
  Numbered<Hop> hops_;
  size_t train_limit_ = 64 * 1024;
  size_t queued_ = 0;  // trains at interfaces
  TraceHash trace_;
  Timeline* timeline_ = nullptr;
};

}  // namespace mcast::sim
