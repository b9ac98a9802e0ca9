// One endpoint of the simulated network: queues on the receiving side, trains on the sending side.
// Datagrams to one address join a train until it is full or flushed. lend() refuses while the
// sender's own link queue is full, which exercises the same back-pressure path as a full socket
// buffer; flush() fails while the interface takes no train, which is ENOBUFS.
#include "sim/network/sim_transport.h"

#include <bit>
#include <utility>

#include "sim/network/sim_network.h"

namespace mcast {

SimTransport::SimTransport(SimNetwork* network, size_t index, const sim::Place& place)
    : network_(network), index_(index), place_(place) {}

SimTransport::~SimTransport() {
  network_->endpoints_[index_].transport = nullptr;
  if (refused_) network_->refused_--;
  for (const auto& [address, times] : joined_) {
    network_->fabric_.router().leave(place_.plane, address, place_.host);
  }
  if (!said_goodbye_) network_->kill(index_);
}

// Called for another thread of the same rank: a group that feeds one of this lane has more data for
// it.
void SimTransport::wake() noexcept { network_->tell(index_); }

std::string SimTransport::describe() const {
  return "sim endpoint " + std::to_string(index_) + " of seed " +
         std::to_string(network_->options_.seed);
}

size_t SimTransport::max_datagram(const MulticastAddress&) const {
  return network_->options_.max_datagram;
}

size_t SimTransport::receive_budget() const { return network_->options_.receive_budget; }

Status SimTransport::join(const MulticastAddress& address) {
  const sim::Driving nobody(network_->options_.meter);
  if (address.port == 0) return Status(Code::kInvalidArgument, "multicast port 0");
  for (auto& [there, times] : joined_) {
    if (there == address) {
      times++;
      return {};
    }
  }
  joined_.emplace_back(address, 1);
  network_->fabric_.router().join(place_.plane, address, place_.host);
  return {};
}

void SimTransport::leave(const MulticastAddress& address) {
  const auto it = std::find_if(joined_.begin(), joined_.end(),
                               [&](const auto& entry) { return entry.first == address; });
  if (it == joined_.end() || --it->second > 0) return;
  joined_.erase(it);
  network_->fabric_.router().leave(place_.plane, address, place_.host);
}

bool SimTransport::open_train(const MulticastAddress& address, size_t size) {
  if (making_ && making_->count > 0) {
    const size_t bytes = making_->begin_of(making_->count);
    const bool fits = making_->address == address && making_->count < network_->train_packets() &&
                      bytes + size <= network_->fabric_.train_limit();
    if (!fits && !send_train()) return false;
  }
  if (!making_) {
    making_ = network_->trains_.make();
    making_->overhead = network_->options_.fabric ? network_->options_.fabric->overhead : 0;
  }
  making_->address = address;
  return true;
}

bool SimTransport::send_train() {
  if (!making_ || making_->count == 0) return true;
  making_->bytes.resize(making_->begin_of(making_->count));  // drop an uncommitted lend
  if (!network_->multicast(*this, making_)) return false;
  making_ = {};
  return true;
}

Bytes SimTransport::lend(const MulticastAddress& address, size_t size, Echo) {
  const sim::Driving nobody(network_->options_.meter);
  if (size > network_->options_.max_datagram) return {};
  if (!network_->may_send(*this) || !open_train(address, size)) {
    network_->refuse(*this);
    return {};
  }
  lent_to_ = address;
  const size_t from = making_->begin_of(making_->count);
  making_->bytes.resize(from + size);
  return Bytes(making_->bytes).subspan(from);
}

void SimTransport::commit(size_t size) {
  const sim::Driving nobody(network_->options_.meter);
  if (network_->classifier_ != nullptr) {
    const size_t from = making_->begin_of(making_->count);
    const sim::TrafficClass what =
        network_->classifier_(ConstBytes(making_->bytes).subspan(from, size));
    // A train is accounted under the class of its first datagram, so a datagram of another class
    // begins a new train.
    if (making_->count > 0 && making_->what != what) {
      const auto begin = making_->bytes.begin() + static_cast<ptrdiff_t>(from);
      const std::vector<std::byte> apart(begin, begin + static_cast<ptrdiff_t>(size));
      if (send_train()) (void)open_train(lent_to_, size);
      making_->bytes.insert(making_->bytes.end(), apart.begin(), apart.end());
    }
    if (making_->count == 0) making_->what = what;
  }
  making_->bytes.resize(making_->begin_of(making_->count) + size);
  making_->add(size);
  if (making_->count >= network_->train_packets()) send_train();
}

size_t SimTransport::gather_from() const { return network_->options_.gather_from; }

// Reads late, as a device does, so that a caller that releases or overwrites the memory too early
// is detected.
bool SimTransport::commit_gather(size_t header, const Slice& block, size_t offset, size_t length) {
  const sim::Driving nobody(network_->options_.meter);
  if (network_->options_.gather_from == SIZE_MAX) return false;
  const size_t from = making_->begin_of(making_->count);
  const auto* const at = making_->bytes.data() + from;
  gathered_.push_back({lent_to_,
                       {at, at + header},
                       block.bytes().subspan(offset, length),
                       block.region->keepalive()});
  return true;
}

bool SimTransport::send_gathered() {
  while (!gathered_.empty()) {
    const Gathered& g = gathered_.front();
    const size_t size = g.header.size() + g.payload.size();
    if (!open_train(g.to, size)) return false;
    lent_to_ = g.to;
    making_->bytes.resize(making_->begin_of(making_->count));
    making_->bytes.insert(making_->bytes.end(), g.header.begin(), g.header.end());
    making_->bytes.insert(making_->bytes.end(), g.payload.begin(), g.payload.end());
    gathered_.erase(gathered_.begin());
    commit(size);
  }
  return true;
}

bool SimTransport::flush() {
  const sim::Driving nobody(network_->options_.meter);
  if (send_gathered() && send_train()) return true;
  network_->refuse(*this);
  return false;
}

size_t SimTransport::receive(DatagramSink& sink, size_t max_bytes) {
  size_t count = 0, bytes = 0;
  while (!inbox_.empty() && bytes < max_bytes) {
    Arrived& next = inbox_.front();
    const auto packet = static_cast<unsigned>(std::countr_zero(next.mask));
    const sim::TrainRef train = next.train;  // the sink may cause more to arrive
    next.mask &= next.mask - 1;
    if (next.mask == 0) inbox_.pop();
    const ConstBytes datagram = train->packet(packet);
    inbox_bytes_ -= datagram.size() + network_->options_.bookkeeping;
    bytes += datagram.size();
    taken_.datagrams++;
    count++;
    taken_.from = train->from;
    sink.on_datagram(datagram);
  }
  return count;
}

Source SimTransport::source() const {
  return taken_.from == sim::kNone ? Source{} : network_->source_of(taken_.from);
}

std::vector<IpAddress> SimTransport::sources_of(const StreamAddress& endpoint) const {
  const size_t index = endpoint.uid - 1;
  if (index >= network_->endpoints_.size()) return {};
  return {network_->source_of(index).address};
}

StreamAddress SimTransport::address(bool) const {
  StreamAddress address{
      .uid = index_ + 1, .host = "sim", .port = static_cast<uint16_t>(index_ + 1)};
  if (guard_) {
    address.key = guard_->identity().pair.public_key();
    address.aggregator = guard_->identity().role == crypto::Role::kAggregator;
  }
  return address;
}

void SimTransport::guard(const sim::GuardOptions& options) {
  const sim::Driving nobody(network_->options_.meter);
  guard_ = std::make_unique<sim::GuardedStreams>(options, static_cast<sim::EndpointId>(index_),
                                                 network_->way_of(index_));
}

PeerId SimTransport::add_peer(const StreamAddress& address) {
  const sim::Driving nobody(network_->options_.meter);
  const auto id = static_cast<PeerId>(address.uid - 1);
  if (guard_) {
    guard_->add(id, address.key,
                address.aggregator ? crypto::Role::kAggregator : crypto::Role::kRank);
  }
  if (expected_) expected_->insert(id);
  meet(id);
  return id;
}

void SimTransport::meet(PeerId peer) {
  const auto index = static_cast<size_t>(peer);
  // An endpoint that does not exist is reported when something is sent to it.
  if (index >= network_->endpoints_.size()) return;
  const sim::Driving nobody(network_->options_.meter);
  if (const auto graceful = known_.meet(index)) on_down({index, *graceful});
}

void SimTransport::on_down(Down down) {
  const sim::Driving nobody(network_->options_.meter);
  const size_t peer = down.peer;
  if (peer < network_->endpoints_.size() && known_.of(peer) == sim::Acquaintances::Known::kNot) {
    return known_.keep_end(peer, down.graceful);
  }
  downs_.push_back(std::move(down));
  network_->tell(index_);
}

std::vector<PeerId> SimTransport::expect(std::span<const uint64_t> uids) {
  std::vector<PeerId> ids;
  for (const uint64_t uid : uids) ids.push_back(static_cast<PeerId>(uid - 1));
  if (!expected_) expected_.emplace();
  expected_->insert(ids.begin(), ids.end());
  for (const PeerId id : ids) {
    if (guard_) guard_->add(id, {}, crypto::Role::kRank);
    meet(id);
  }
  if (guard_) guard_->turn_away();
  return ids;
}

void SimTransport::send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) {
  const sim::Driving nobody(network_->options_.meter);
  meet(peer);
  account_.frames[static_cast<size_t>(channel)]++;
  sim::Frame frame;
  size_t size = 0;
  for (const ConstBytes part : parts) size += part.size();
  frame.reserve(size);
  for (const ConstBytes part : parts) frame.insert(frame.end(), part.begin(), part.end());
  network_->send_frame(index_, peer, channel, std::move(frame));
}

size_t SimTransport::queued(PeerId peer, Channel channel) const {
  const size_t sent =
      network_->streams_->queued(static_cast<sim::EndpointId>(index_), peer, channel);
  return guard_ ? sent + guard_->waiting(peer, channel) : sent;
}

SimTransport::InFrame SimTransport::take_frame() {
  const sim::Driving nobody(network_->options_.meter);
  InFrame frame = std::move(frames_.front());
  frames_.pop_front();
  if (!guard_) known_.hear(frame.from);
  network_->streams_->on_taken(static_cast<sim::EndpointId>(frame.from),
                               static_cast<sim::EndpointId>(index_), frame.channel,
                               frame.bytes.size());
  return frame;
}

std::optional<ConstBytes> SimTransport::open(const InFrame& frame) {
  const sim::Driving nobody(network_->options_.meter);
  const bool clear = frame.bytes.connection == 0;  // SimNetwork::inject_frame()
  const auto inside =
      clear ? std::optional<ConstBytes>(frame.bytes)
            : guard_->take(static_cast<sim::EndpointId>(frame.from), frame.channel, frame.bytes);
  if (inside) known_.hear(frame.from);
  return inside;
}

size_t SimTransport::poll(StreamSink& sink, Nanos) {
  size_t events = 0;
  if (guard_) {
    const sim::Driving nobody(network_->options_.meter);
    timer_due_ = false;
    guard_->run_timers();
  }
  // Bounded by what is there now: the sink may cause more.
  for (size_t n = frames_.size(); n > 0; n--) {
    const InFrame frame = take_frame();
    const auto inside = guard_ ? open(frame) : std::optional<ConstBytes>(frame.bytes);
    if (!inside) continue;
    events++;
    if (expected_ && expected_->count(static_cast<PeerId>(frame.from)) == 0) continue;
    sink.on_frame(static_cast<PeerId>(frame.from), frame.channel, *inside);
  }
  if (guard_) {
    for (const auto& [cause, from] : guard_->take_refusals()) {
      sink.on_refused(cause, network_->source_of(from));
    }
  }
  for (size_t n = downs_.size(); n > 0; n--, events++) {
    Down down = downs_.front();
    downs_.pop_front();
    if (guard_ && down.why.ok()) {
      const sim::Driving nobody(network_->options_.meter);
      const bool closed = std::exchange(
          down.graceful, guard_->end(static_cast<sim::EndpointId>(down.peer), down.graceful));
      if (closed && !down.graceful) {
        down.why = Status(Code::kPeerLost, sim::peer_text(static_cast<sim::EndpointId>(down.peer)) +
                                               " closed its connection without a goodbye");
      }
    }
    if (known_.of(down.peer) == sim::Acquaintances::Known::kHeard) {
      const sim::Driving nobody(network_->options_.meter);
      known_.keep_end(down.peer, down.graceful);
      sink.on_stranger_gone(static_cast<PeerId>(down.peer));
      continue;
    }
    if (expected_ && expected_->count(static_cast<PeerId>(down.peer)) == 0) continue;
    sink.on_peer_down(
        static_cast<PeerId>(down.peer),
        down.why.ok() ? Status(Code::kPeerLost, "connection reset by peer") : down.why,
        down.graceful);
  }
  return events;
}

bool SimTransport::close_peers(Nanos) {
  const sim::Driving nobody(network_->options_.meter);
  if (guard_) {
    // In their order: frames that arrive later do not wait for a poll any more.
    while (!frames_.empty()) (void)open(take_frame());
    return guard_->close();
  }
  if (!said_goodbye_) network_->goodbye(index_);
  said_goodbye_ = true;
  return true;
}

}  // namespace mcast
