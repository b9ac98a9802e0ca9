// Datagrams and frames that no endpoint has sent, injected by tests, and faults.
#include "sim/network/sim_network.h"

namespace mcast {

void SimNetwork::inject(size_t to, ConstBytes datagram, size_t from) {
  sim::TrainRef train = trains_.make();
  train->from = from == SIZE_MAX ? sim::kNone : static_cast<sim::EndpointId>(from);
  train->bytes.assign(datagram.begin(), datagram.end());
  train->add(datagram.size());
  endpoints_[to].transport->inbox_bytes_ += datagram.size() + options_.bookkeeping;
  endpoints_[to].transport->inbox_.push({std::move(train), 1});
  tell(to);
}

uint64_t SimNetwork::flood(size_t to, ConstBytes datagram) {
  const Endpoint& endpoint = endpoints_[to];
  if (endpoint.transport == nullptr || endpoint.dead || endpoint.isolated) return 0;
  uint64_t came = 0;
  for (const auto& [address, times] : endpoint.transport->joined_) {
    sim::TrainRef train = trains_.make();
    train->from = sim::kNone;
    train->address = address;
    train->plane = endpoint.place.plane;
    train->what = sim::TrafficClass::kBackground;
    train->bytes.assign(datagram.begin(), datagram.end());
    train->add(datagram.size());
    hand_over(to, train, 1);
    came++;
  }
  return came;
}

void SimNetwork::flood_beside(size_t to, uint64_t datagrams, bool broadcast) {
  SimTransport& transport = *endpoints_[to].transport;
  if (broadcast || !transport.joined_.empty()) transport.taken_.ignored += datagrams;
}

void SimNetwork::inject_frame(size_t from, size_t to, Channel channel, ConstBytes frame) {
  endpoints_[to].transport->frames_.push_back({from, channel, {frame.begin(), frame.end()}});
  tell(to);
}

}  // namespace mcast
