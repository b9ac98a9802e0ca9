// The network is a queue of timed deliveries. A multicast datagram is judged once per receiver
// (hook, blocked path, burst loss, duplicate, corruption, delay) when it is sent; link rates are
// modelled by the time at which each sender's and each receiver's port is free again, and a
// receiver's queue drops what exceeds its budget, as a socket buffer does. Frames keep their order
// per (from, to, channel); an isolated endpoint's frames are held, not lost, as TCP would
// retransmit them.
#include "transport/sim/sim_network.h"

#include <algorithm>
#include <cmath>

namespace mcast {

SimNetwork::SimNetwork(const SimOptions& options) : options_(options), rng_(options.seed) {}
SimNetwork::~SimNetwork() = default;

std::unique_ptr<SimTransport> SimNetwork::attach() {
  const size_t index = endpoints_.size();
  auto transport = std::make_unique<SimTransport>(this, index);
  endpoints_.push_back(transport.get());
  tx_free_.push_back(0);
  rx_free_.push_back(0);
  dead_.push_back(false);
  isolated_.push_back(false);
  in_burst_.push_back(false);
  held_.emplace_back();
  return transport;
}

void SimNetwork::schedule(Nanos at, size_t to, std::function<void()> run) {
  events_.push(Event{at, order_++, to, std::move(run)});
}

std::vector<ConstBytes> SimNetwork::unflushed() const {
  std::vector<ConstBytes> headers;
  for (const SimTransport* endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    for (const auto& g : endpoint->gathered_) headers.emplace_back(g.header);
  }
  return headers;
}

Nanos SimNetwork::next_event() const { return events_.empty() ? kNever : events_.top().at; }

bool SimNetwork::waiting(size_t endpoint) const {
  const SimTransport* const e = endpoints_[endpoint];
  return e != nullptr && !(e->inbox_.empty() && e->frames_.empty() && e->downs_.empty());
}

void SimNetwork::advance(Nanos now) {
  while (!events_.empty() && events_.top().at <= now) {
    now_ = std::max(now_, events_.top().at);
    auto run = std::move(const_cast<Event&>(events_.top()).run);
    events_.pop();
    run();
  }
  now_ = std::max(now_, now);
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
  in_burst_[to] = in_burst_[to] ? !rng_.chance(leave) : rng_.chance(enter);
  return in_burst_[to];
}

void SimNetwork::multicast(size_t from, const MulticastAddress& address, ConstBytes datagram) {
  totals_.datagrams_sent++;
  if (dead_[from] || isolated_[from]) return;
  Nanos sent = now_;
  if (options_.rate > 0) {
    tx_free_[from] = std::max(tx_free_[from], now_) +
                     static_cast<Nanos>(static_cast<double>(datagram.size()) * 1e9 / options_.rate);
    sent = tx_free_[from];
  }
  for (size_t to = 0; to < endpoints_.size(); to++) {
    if (endpoints_[to] == nullptr || !endpoints_[to]->joined_.count(address)) continue;
    deliver(from, to, address, datagram, sent);
  }
}

void SimNetwork::deliver(size_t from, size_t to, const MulticastAddress& address,
                         ConstBytes datagram, Nanos sent) {
  const SimFaults& f = options_.faults;
  bool clean = from == to;  // the local echo never touches the wire
  if (datagram_hook_) {
    const Verdict v = datagram_hook_(from, to, datagram);
    if (v == Verdict::kDrop) {
      totals_.dropped++;
      return;
    }
    clean = clean || v == Verdict::kDeliverClean;
  }
  if (dead_[to] || isolated_[to] || blocked(from, to) || (!clean && lose(to))) {
    totals_.dropped++;
    return;
  }
  const int copies = !clean && rng_.chance(f.duplicate) ? 1 + f.copies : 1;
  for (int copy = 0; copy < copies; copy++) {
    std::vector<std::byte> bytes(datagram.begin(), datagram.end());
    if (!clean && rng_.chance(f.corrupt) && !bytes.empty()) {
      totals_.corrupted++;
      bytes[rng_.below(bytes.size())] ^= static_cast<std::byte>(1u << rng_.below(8));
    }
    Nanos at = sent + options_.latency + static_cast<Nanos>(rng_.below(options_.jitter + 1));
    if (options_.rate > 0 && from != to) {
      rx_free_[to] = std::max(rx_free_[to], at) +
                     static_cast<Nanos>(static_cast<double>(bytes.size()) * 1e9 / options_.rate);
      at = rx_free_[to];
    }
    if (copy > 0) {
      totals_.duplicated++;
      at += static_cast<Nanos>(rng_.below(static_cast<uint64_t>(f.copy_delay) + 1));
    }
    if (!clean && rng_.chance(f.reorder)) at += static_cast<Nanos>(rng_.below(f.reorder_delay + 1));
    schedule(at, to, [this, to, address, data = std::move(bytes)]() mutable {
      SimTransport* endpoint = endpoints_[to];
      if (endpoint == nullptr || dead_[to] || !endpoint->joined_.count(address)) return;
      if (endpoint->inbox_bytes_ + data.size() > options_.receive_budget * 8 / 5) {
        totals_.overflowed++;
        return;
      }
      totals_.delivered++;
      endpoint->inbox_bytes_ += data.size();
      endpoint->inbox_.push_back(std::move(data));
    });
  }
}

void SimNetwork::inject(size_t to, ConstBytes datagram) {
  endpoints_[to]->inbox_bytes_ += datagram.size();
  endpoints_[to]->inbox_.emplace_back(datagram.begin(), datagram.end());
}

void SimNetwork::inject_frame(size_t from, size_t to, Channel channel, ConstBytes frame) {
  endpoints_[to]->frames_.push_back({from, channel, {frame.begin(), frame.end()}});
}

void SimNetwork::send_frame(size_t from, size_t to, Channel channel, std::vector<std::byte> frame) {
  totals_.frames++;
  if (dead_[from] || broken_.count({from, to}) > 0) return;
  if (frame_hook_ && !frame_hook_(from, to, channel, frame)) return;
  if (to >= endpoints_.size() || dead_[to] || endpoints_[to] == nullptr) {
    schedule(now_ + options_.stream_latency, from,
             [this, from, to] { report_down(from, to, false); });
    return;
  }
  Nanos at = now_ + options_.stream_latency + static_cast<Nanos>(rng_.below(options_.jitter + 1));
  Nanos& free = stream_free_[{from, to, channel}];
  if (options_.stream_rate > 0 && channel != Channel::kControl) {
    const auto takes =
        static_cast<Nanos>(static_cast<double>(frame.size()) * 1e9 / options_.stream_rate);
    at = std::max(at, free) + takes;
    stream_queued_[{from, to, channel}] += frame.size();
    schedule(at - options_.stream_latency, from, [this, from, to, channel, size = frame.size()] {
      stream_queued_[{from, to, channel}] -= size;
    });
  }
  at = std::max(at, free + 1);
  free = at;
  auto run = [this, from, to, channel, data = std::move(frame)]() mutable {
    auto arrive = [this, from, to, channel, data = std::move(data)]() mutable {
      if (endpoints_[to] != nullptr && !dead_[to] && broken_.count({from, to}) == 0) {
        endpoints_[to]->frames_.push_back({from, channel, std::move(data)});
      }
    };
    if (isolated_[to]) {
      held_[to].push_back(std::move(arrive));
    } else if (isolated_[from]) {
      held_[from].push_back(std::move(arrive));
    } else {
      arrive();
    }
  };
  schedule(at, to, std::move(run));
}

void SimNetwork::kill(size_t endpoint) {
  if (dead_[endpoint]) return;
  dead_[endpoint] = true;
  for (size_t to = 0; to < endpoints_.size(); to++) {
    if (to == endpoint) continue;
    schedule(now_ + options_.stream_latency, to,
             [this, to, endpoint] { report_down(to, endpoint, false); });
  }
}

void SimNetwork::reset(size_t a, size_t b) {
  for (const auto& [to, about] : {std::pair(a, b), std::pair(b, a)}) {
    broken_.insert({to, about});
    schedule(now_ + options_.stream_latency, to,
             [this, to = to, about = about] { report_down(to, about, false); });
  }
}

void SimNetwork::report_down(size_t to, size_t about, bool graceful) {
  if (endpoints_[to] == nullptr || dead_[to] || !told_.insert({to, about}).second) return;
  endpoints_[to]->downs_.push_back({about, graceful});
}

void SimNetwork::goodbye(size_t endpoint) {
  for (size_t to = 0; to < endpoints_.size(); to++) {
    if (to == endpoint) continue;
    Nanos last = now_ + options_.stream_latency;
    for (size_t c = 0; c < kChannels; c++) {
      const auto it = stream_free_.find({endpoint, to, static_cast<Channel>(c)});
      if (it != stream_free_.end()) last = std::max(last, it->second);
    }
    schedule(last + 1, to, [this, to, endpoint] { report_down(to, endpoint, true); });
  }
}

void SimNetwork::isolate(size_t endpoint) { isolated_[endpoint] = true; }

void SimNetwork::heal(size_t endpoint) {
  isolated_[endpoint] = false;
  auto held = std::move(held_[endpoint]);
  held_[endpoint].clear();
  for (auto& run : held) run();
}

void SimNetwork::block_multicast(size_t from, size_t to, bool block) {
  std::erase(multicast_blocks_, std::pair(from, to));
  if (block) multicast_blocks_.emplace_back(from, to);
}

}  // namespace mcast
