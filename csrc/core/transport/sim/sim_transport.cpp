// One endpoint of the simulated network: queues on the receiving side, straight calls into the
// network on the sending side. lend() refuses while the sender's own link queue is full, which
// exercises the same back-pressure path as a full socket buffer.
#include "transport/sim/sim_network.h"

namespace mcast {

SimTransport::SimTransport(SimNetwork* network, size_t index) : network_(network), index_(index) {}

SimTransport::~SimTransport() {
  network_->endpoints_[index_] = nullptr;
  if (!said_goodbye_) network_->kill(index_);
}

std::string SimTransport::describe() const {
  return "sim endpoint " + std::to_string(index_) + " of seed " +
         std::to_string(network_->options_.seed);
}

size_t SimTransport::max_datagram(const MulticastAddress&) const {
  return network_->options_.max_datagram;
}

size_t SimTransport::receive_budget() const { return network_->options_.receive_budget; }

Status SimTransport::join(const MulticastAddress& address) {
  if (address.port == 0) return Status(Code::kInvalidArgument, "multicast port 0");
  joined_[address]++;
  return {};
}

void SimTransport::leave(const MulticastAddress& address) {
  const auto it = joined_.find(address);
  if (it != joined_.end() && --it->second == 0) joined_.erase(it);
}

Bytes SimTransport::lend(const MulticastAddress& address, size_t size, Echo) {
  if (size > network_->options_.max_datagram) return {};
  if (network_->options_.rate > 0) {
    const Nanos backlog = network_->tx_free_[index_] - network_->now_;
    if (static_cast<double>(backlog) * network_->options_.rate / 1e9 >
        static_cast<double>(network_->options_.send_queue)) {
      return {};
    }
  }
  lent_.resize(size);
  lent_to_ = address;
  return lent_;
}

void SimTransport::commit(size_t size) {
  network_->multicast(index_, lent_to_, ConstBytes(lent_.data(), size));
}

// Late, as a device does: whoever lets go of the memory or writes to it too early is found out.
bool SimTransport::commit_gather(size_t header, const Slice& block, size_t offset, size_t length) {
  if (network_->options_.gather_from == SIZE_MAX) return false;
  lent_.resize(header);
  gathered_.push_back(
      {lent_to_, lent_, block.bytes().subspan(offset, length), block.region->keepalive()});
  return true;
}

bool SimTransport::flush() {
  for (Gathered& g : gathered_) {
    g.header.insert(g.header.end(), g.payload.begin(), g.payload.end());
    network_->multicast(index_, g.to, g.header);
  }
  gathered_.clear();
  return true;
}

size_t SimTransport::receive(DatagramSink& sink, size_t max_bytes) {
  size_t count = 0, bytes = 0;
  while (!inbox_.empty() && bytes < max_bytes) {
    const auto datagram = std::move(inbox_.front());
    inbox_.pop_front();
    inbox_bytes_ -= datagram.size();
    bytes += datagram.size();
    count++;
    sink.on_datagram(datagram);
  }
  return count;
}

StreamAddress SimTransport::address(bool) const {
  return {.uid = index_ + 1, .host = "sim", .port = static_cast<uint16_t>(index_ + 1)};
}

PeerId SimTransport::add_peer(const StreamAddress& address) {
  const auto id = static_cast<PeerId>(address.uid - 1);
  if (expected_) expected_->insert(id);
  return id;
}

std::vector<PeerId> SimTransport::expect(std::span<const uint64_t> uids) {
  std::vector<PeerId> ids;
  for (const uint64_t uid : uids) ids.push_back(static_cast<PeerId>(uid - 1));
  if (!expected_) expected_.emplace();
  expected_->insert(ids.begin(), ids.end());
  return ids;
}

void SimTransport::send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) {
  std::vector<std::byte> frame;
  for (const ConstBytes part : parts) frame.insert(frame.end(), part.begin(), part.end());
  network_->send_frame(index_, peer, channel, std::move(frame));
}

size_t SimTransport::poll(StreamSink& sink, Nanos) {
  size_t events = 0;
  // Bounded by what is there now: the sink may cause more.
  for (size_t n = frames_.size(); n > 0; n--, events++) {
    const InFrame frame = std::move(frames_.front());
    frames_.pop_front();
    if (expected_ && expected_->count(static_cast<PeerId>(frame.from)) == 0) continue;
    sink.on_frame(static_cast<PeerId>(frame.from), frame.channel, frame.bytes);
  }
  for (size_t n = downs_.size(); n > 0; n--, events++) {
    const Down down = downs_.front();
    downs_.pop_front();
    if (expected_ && expected_->count(static_cast<PeerId>(down.peer)) == 0) continue;
    sink.on_peer_down(static_cast<PeerId>(down.peer),
                      Status(Code::kPeerLost, "connection reset by peer"), down.graceful);
  }
  return events;
}

bool SimTransport::close_peers(Nanos) {
  if (!said_goodbye_) network_->goodbye(index_);
  said_goodbye_ = true;
  return true;
}

}  // namespace mcast
