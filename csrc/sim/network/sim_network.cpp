// Endpoints on a fabric. Datagrams leave as trains; a hook is called for each receiver when one is
// sent, and its verdicts travel with the train. When a train is at a host, each of the host's
// endpoints that joined receives it after random faults: loss, copies, bit errors, delays. A
// receiver's queue drops datagrams beyond its budget, as a socket buffer does.
#include "sim/network/sim_network.h"

#include <algorithm>
#include <bit>

#include "sim/network/flows.h"
#include "sim/network/ideal_streams.h"

namespace mcast {

namespace {

using sim::EventKind;
using sim::TrainRef;

// The numbers of a star are those of its hosts' links: the whole latency is on the way down, so
// that datagrams reach the switch immediately if there is no rate.
sim::FabricOptions links_of(const SimOptions& options) {
  if (options.fabric) return options.fabric->links;
  sim::FabricOptions links;
  links.seed = options.seed;
  links.host_up.rate = links.host_down.rate = options.rate;
  links.host_down.delay = static_cast<double>(options.latency);
  return links;
}

}  // namespace

SimNetwork::SimNetwork(const SimOptions& options)
    : options_(options), rng_(options.seed), fabric_(links_of(options), events_, *this) {
  sim::StreamsOwner& owner = *this;
  if (options.fabric) {
    streams_ =
        std::make_unique<sim::Flows>(options.fabric->flows, fabric_, events_, trains_, owner);
  } else {
    const sim::IdealStreamOptions ideal{options.stream_latency, options.jitter,
                                        options.stream_rate};
    streams_ = std::make_unique<sim::IdealStreams>(ideal, events_, rng_, owner);
  }
  at_host_.resize(fabric_.topology().hosts());
}

SimNetwork::~SimNetwork() = default;

std::unique_ptr<SimTransport> SimNetwork::attach() {
  sim::Place place;
  if (options_.fabric) {
    place.host = static_cast<sim::HostId>(endpoints_.size() / options_.fabric->host_endpoints);
  } else {
    place.host = fabric_.grow();
    at_host_.emplace_back();
  }
  return attach(place);
}

std::unique_ptr<SimTransport> SimNetwork::attach(const sim::Place& place) {
  auto transport = std::make_unique<SimTransport>(this, endpoints_.size(), place);
  at_host_.at(place.host).push_back(endpoints_.size());
  Endpoint endpoint;
  endpoint.transport = transport.get();
  endpoint.place = place;
  endpoints_.push_back(endpoint);
  return transport;
}

void SimNetwork::schedule(Nanos at, std::function<void()> action) {
  const sim::Driving nobody(options_.meter);
  const uint32_t index = actions_.take();
  actions_[index] = std::move(action);
  events_.push(at, EventKind::kAction, index);
}

std::vector<ConstBytes> SimNetwork::unflushed() const {
  std::vector<ConstBytes> headers;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.transport == nullptr) continue;
    for (const auto& g : endpoint.transport->gathered_) headers.emplace_back(g.header);
  }
  return headers;
}

bool SimNetwork::waiting(size_t endpoint) const {
  const SimTransport* const e = endpoints_[endpoint].transport;
  return e != nullptr &&
         !(e->inbox_.empty() && e->frames_.empty() && e->downs_.empty() && !e->timer_due_);
}

void SimNetwork::advance(Nanos now) {
  while (events_.next() <= now && !events_.empty()) on_event(events_.pop());
  events_.move_to(now);
}

Nanos SimNetwork::advance_to_arrival(Nanos limit) {
  const uint64_t before = arrivals_;
  while (arrivals_ == before) {
    if (events_.empty() || events_.next() > limit) return limit;
    on_event(events_.pop());
  }
  return now();
}

void SimNetwork::on_event(const sim::Event& event) {
  if (event.kind == EventKind::kFrame || event.kind == EventKind::kAction) arrivals_++;
  switch (event.kind) {
    case EventKind::kHop:
      return fabric_.on_hop(event.index);
    case EventKind::kNic:
      return fabric_.on_nic(event.index);
    case EventKind::kFlow:
    case EventKind::kFrame:
      return streams_->on_event(event.kind, event.index);
    case EventKind::kDatagram: {
      const Late late = std::move(late_[event.index]);
      late_.give(event.index);
      return hand_over(late.to, late.train, late.mask);
    }
    case EventKind::kAction: {
      const auto run = std::move(actions_[event.index]);
      actions_.give(event.index);
      return run();
    }
    case EventKind::kTurn:
      return listener_->on_turn(event.index);
  }
}

// ---- datagrams out ----

unsigned SimNetwork::train_packets() const {
  return hooks_.datagram || !options_.fabric ? 1
                                             : std::min(options_.fabric->train, sim::Train::kMost);
}

bool SimNetwork::may_send(const SimTransport& from) const {
  if (!options_.fabric && options_.rate <= 0) return true;
  const sim::Port& port =
      fabric_.port(fabric_.topology().host_link(from.place_.plane, from.place_.host));
  const double waiting =
      static_cast<double>(from.waiting_) + port.waiting(static_cast<double>(now()));
  return waiting <= static_cast<double>(options_.send_queue);
}

// The endpoint is notified again when a train has left the interface; if only the link is behind,
// when half of its backlog has drained.
void SimNetwork::refuse(SimTransport& from) {
  if (listener_ == nullptr || from.refused_) return;
  from.refused_ = true;
  refused_++;
  if (from.waiting_ > 0) return;
  const sim::Port& port =
      fabric_.port(fabric_.topology().host_link(from.place_.plane, from.place_.host));
  const double half = port.drained_to(static_cast<double>(options_.send_queue) / 2);
  schedule(std::max(now() + 1, static_cast<Nanos>(half)),
           [this, host = from.place_.host] { let_go_on(host); });
}

void SimNetwork::let_go_on(sim::HostId host) {
  for (const size_t index : at_host_[host]) {
    SimTransport* const endpoint = endpoints_[index].transport;
    if (endpoint == nullptr || !endpoint->refused_) continue;
    endpoint->refused_ = false;
    refused_--;
    tell(index);
  }
}

bool SimNetwork::multicast(SimTransport& from, const TrainRef& train) {
  const Endpoint& endpoint = endpoints_[from.index_];
  if (!endpoint.dead && !endpoint.isolated) {
    train->from = static_cast<sim::EndpointId>(from.index_);
    train->plane = from.place_.plane;
    train->tree = fabric_.router().tree_for(train->plane, train->address, from.place_.host,
                                            &train->root_level);
    if (hooks_.datagram && train->verdicts.empty()) ask_hook(from.index_, *train);
    if (options_.faults.refuse > 0 && rng_.chance(options_.faults.refuse)) {
      totals_.refused++;
      return false;
    }
    from.waiting_ += train->wire;
    if (!fabric_.send(from.place_.host, train, from.place_.queue)) {
      from.waiting_ -= train->wire;
      return false;
    }
  }
  totals_.datagrams_sent += train->count;
  return true;
}

// While a hook is set, trains are single datagrams.
void SimNetwork::ask_hook(size_t from, sim::Train& train) {
  for (size_t to = 0; to < endpoints_.size(); to++) {
    const SimTransport* const receiver = endpoints_[to].transport;
    if (receiver == nullptr || !receiver->has_joined(train.address)) continue;
    const Verdict verdict = hooks_.datagram(from, to, train.packet(0));
    if (verdict != Verdict::kPass) {
      train.verdicts.emplace_back(static_cast<sim::EndpointId>(to), static_cast<uint8_t>(verdict));
    }
  }
}

void SimNetwork::on_departure(const sim::Train& train) {
  SimTransport* const from = endpoints_[train.from].transport;
  if (train.stream.flow != sim::kNone) {
    streams_->on_departure(train);
  } else if (from != nullptr) {
    from->waiting_ -= train.wire;
  }
  if (refused_ > 0) let_go_on(endpoints_[train.from].place.host);
}

// ---- datagrams in ----

void SimNetwork::on_train(sim::HostId host, const TrainRef& train, uint64_t mask, bool echo) {
  if (train->stream.flow != sim::kNone) return streams_->on_train(train, mask);
  if (echo) host = endpoints_[train->from].place.host;
  for (const size_t to : at_host_[host]) reach(to, train, mask);
}

bool SimNetwork::blocked(size_t from, size_t to) const {
  return std::any_of(multicast_blocks_.begin(), multicast_blocks_.end(), [&](const auto& b) {
    return b.first == from && (b.second == to || b.second == SIZE_MAX);
  });
}

bool SimNetwork::lose(size_t to) {
  const SimFaults& f = options_.faults;
  if (f.drop <= 0) return false;
  if (f.burst <= 1) return rng_.chance(f.drop);
  // Two-state burst model: leave a burst with probability 1/burst, enter so that the mean loss
  // fits.
  const double leave = 1.0 / f.burst;
  const double enter = std::min(1.0, leave * f.drop / std::max(1e-9, 1.0 - f.drop));
  bool& in_burst = endpoints_[to].in_burst;
  in_burst = in_burst ? !rng_.chance(leave) : rng_.chance(enter);
  return in_burst;
}

void SimNetwork::reach(size_t to, const TrainRef& train, uint64_t mask) {
  const Endpoint& endpoint = endpoints_[to];
  if (endpoint.transport == nullptr || endpoint.place.plane != train->plane ||
      !endpoint.transport->has_joined(train->address)) {
    return;
  }
  const bool muted = !multicast_blocks_.empty() && blocked(train->from, to);
  if (endpoint.dead || endpoint.isolated || muted) {
    const auto packets = static_cast<uint64_t>(std::popcount(mask));
    totals_.dropped += packets;
    totals_.blocked += muted ? packets : 0;
    return;
  }
  const SimFaults& f = options_.faults;
  const bool faultless = train->verdicts.empty() && options_.jitter == 0 && f.drop <= 0 &&
                         f.duplicate <= 0 && f.reorder <= 0 && f.corrupt <= 0;
  if (faultless) return hand_over(to, train, mask);
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    judge(to, train, static_cast<unsigned>(std::countr_zero(left)));
  }
}

void SimNetwork::judge(size_t to, const TrainRef& train, unsigned packet) {
  const SimFaults& f = options_.faults;
  bool clean = train->from == to;  // the local echo never uses the wire
  for (const auto& [endpoint, verdict] : train->verdicts) {
    if (endpoint != to) continue;
    if (verdict == static_cast<uint8_t>(Verdict::kDrop)) {
      totals_.dropped++;
      return;
    }
    clean = true;
  }
  if (!clean && lose(to)) {
    totals_.lost++;
    totals_.dropped++;
    return;
  }
  const int copies = !clean && rng_.chance(f.duplicate) ? 1 + f.copies : 1;
  for (int copy = 0; copy < copies; copy++) {
    TrainRef what = train;
    uint64_t bit = uint64_t{1} << packet;
    if (!clean && rng_.chance(f.corrupt) && train->length_of(packet) > 0) {
      totals_.corrupted++;
      what = corrupted(*train, packet);
      bit = 1;
    }
    auto delay = static_cast<Nanos>(rng_.below(static_cast<uint64_t>(options_.jitter) + 1));
    if (copy > 0) {
      totals_.duplicated++;
      delay += static_cast<Nanos>(rng_.below(static_cast<uint64_t>(f.copy_delay) + 1));
    }
    if (!clean && rng_.chance(f.reorder)) {
      totals_.reordered++;
      delay += static_cast<Nanos>(rng_.below(static_cast<uint64_t>(f.reorder_delay) + 1));
    }
    if (delay == 0) {
      hand_over(to, what, bit);
      continue;
    }
    const uint32_t index = late_.take();
    late_[index] = {std::move(what), bit, to};
    events_.push(now() + delay, EventKind::kDatagram, index);
  }
}

TrainRef SimNetwork::corrupted(const sim::Train& train, unsigned packet) {
  const ConstBytes bytes = train.packet(packet);
  TrainRef copy = trains_.make();
  copy->from = train.from;
  copy->address = train.address;
  copy->plane = train.plane;
  copy->bytes.assign(bytes.begin(), bytes.end());
  copy->bytes[rng_.below(bytes.size())] ^= static_cast<std::byte>(1u << rng_.below(8));
  copy->add(bytes.size());
  return copy;
}

void SimNetwork::hand_over(size_t to, const TrainRef& train, uint64_t mask) {
  arrivals_++;
  const Endpoint& endpoint = endpoints_[to];
  SimTransport* const transport = endpoint.transport;
  if (transport == nullptr || endpoint.dead || !transport->has_joined(train->address)) {
    return;
  }
  const size_t room = options_.receive_budget * 8 / 5, beside = options_.bookkeeping;
  uint64_t taken = 0;
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    const size_t length = train->length_of(static_cast<unsigned>(std::countr_zero(left))) + beside;
    if (transport->inbox_bytes_ + length > room) {
      totals_.overflowed++;
      const bool data =
          train->what != sim::TrafficClass::kProbe && train->what != sim::TrafficClass::kBackground;
      totals_.overflowed_data += data ? 1 : 0;
      continue;
    }
    totals_.delivered++;
    transport->inbox_bytes_ += length;
    taken |= left & -left;
  }
  if (taken == 0) return;
  transport->account_.inbox = std::max(transport->account_.inbox, transport->inbox_bytes_);
  transport->inbox_.push({train, taken});
  tell(to);
}

// ---- streams ----

void SimNetwork::send_frame(size_t from, size_t to, Channel channel, sim::Frame frame) {
  totals_.frames++;
  if (endpoints_[from].dead) return;
  if (hooks_.frame && !hooks_.frame(from, to, channel, frame)) {
    totals_.hooked++;
    return;
  }
  sim::GuardedStreams* const guard = endpoints_[from].transport->guard_.get();
  if (guard != nullptr) {
    guard->send(static_cast<sim::EndpointId>(to), channel, std::move(frame));
  } else {
    carry(from, to, channel, std::move(frame));
  }
}

void SimNetwork::send_background(size_t from, size_t to, uint64_t bytes) {
  endpoints_[from].others = true;
  static_cast<sim::Flows&>(*streams_).send_length(static_cast<sim::EndpointId>(from),
                                                  static_cast<sim::EndpointId>(to),
                                                  Channel::kRepair, bytes, 0);
}

sim::TrafficClass SimNetwork::class_of(sim::EndpointId from, Channel channel) const {
  if (endpoints_[from].others) return sim::TrafficClass::kBackground;
  return options_.fabric->frames[static_cast<size_t>(channel)];
}

void SimNetwork::on_stream_frame(sim::EndpointId from, sim::EndpointId to, Channel channel,
                                 sim::Frame frame) {
  arrivals_++;
  SimTransport* const transport = endpoints_[to].transport;
  if (transport == nullptr) return;
  sim::GuardedStreams* const guard = transport->guard_.get();
  const bool guarded = frame.connection != 0, apart = guarded != (guard != nullptr);
  if (apart || (guard != nullptr && guard->closing())) {
    streams_->on_taken(from, to, channel, frame.size());
    if (!apart) return (void)guard->take(from, channel, frame);
    // An endpoint without a guard never sends a Challenge; a guarded one hangs up on plaintext.
    if (guarded) return;
    guard->refuse_clear(from);
    return schedule(now() + options_.stream_latency,
                    [this, from, to] { report_down(from, to, false); });
  }
  transport->frames_.push_back({from, channel, std::move(frame)});
  tell(to);
}

void SimNetwork::on_stream_closed(sim::EndpointId from, sim::EndpointId to) {
  report_down(to, from, true);
}

void SimNetwork::kill(size_t endpoint) {
  if (endpoints_[endpoint].dead || ended_) return;
  endpoints_[endpoint].dead = true;
  streams_->drop(static_cast<sim::EndpointId>(endpoint));
  for (size_t to = 0; to < endpoints_.size(); to++) {
    if (to == endpoint) continue;
    schedule(now() + options_.stream_latency,
             [this, to, endpoint] { report_down(to, endpoint, false); });
  }
}

void SimNetwork::reset(size_t a, size_t b, Nanos later) {
  streams_->cut(static_cast<sim::EndpointId>(a), static_cast<sim::EndpointId>(b));
  const Nanos first = now() + options_.stream_latency;
  schedule(first, [this, a, b] { report_down(a, b, false); });
  schedule(first + later, [this, a, b] { report_down(b, a, false); });
}

void SimNetwork::report_down(size_t to, size_t about, bool graceful) {
  if (endpoints_[to].transport == nullptr || endpoints_[to].dead) return;
  if (!told_.insert({to, about}).second) return;
  endpoints_[to].transport->on_down({about, graceful});
}

void SimNetwork::goodbye(size_t endpoint) {
  for (size_t to = 0; to < endpoints_.size(); to++) {
    if (to == endpoint) continue;
    streams_->close(static_cast<sim::EndpointId>(endpoint), static_cast<sim::EndpointId>(to));
  }
}

void SimNetwork::isolate(size_t endpoint) {
  endpoints_[endpoint].isolated = true;
  streams_->hold(static_cast<sim::EndpointId>(endpoint), true);
}

void SimNetwork::heal(size_t endpoint) {
  endpoints_[endpoint].isolated = false;
  streams_->hold(static_cast<sim::EndpointId>(endpoint), false);
}

void SimNetwork::cut_streams(size_t a, size_t b, bool cut) {
  static_cast<sim::Flows&>(*streams_).hold_pair(static_cast<sim::EndpointId>(a),
                                                static_cast<sim::EndpointId>(b), cut);
}

void SimNetwork::block_multicast(size_t from, size_t to, bool block) {
  std::erase(multicast_blocks_, std::pair(from, to));
  if (block) multicast_blocks_.emplace_back(from, to);
}

}  // namespace mcast
