// The network's part of guarded endpoints: carries their messages past an attacker on the path, and
// runs their timers. The streams themselves do not know the contents that they carry.
#include <utility>

#include "sim/network/sim_network.h"

namespace mcast {

void SimNetwork::inject_record(size_t from, size_t to, Channel channel, sim::Frame message) {
  on_stream_frame(static_cast<sim::EndpointId>(from), static_cast<sim::EndpointId>(to), channel,
                  std::move(message));
}

void SimNetwork::carry(size_t from, size_t to, Channel channel, sim::Frame message) {
  if (endpoints_[from].dead) return;
  const bool seen = hooks_.record && message.connection != 0;
  if (seen && !hooks_.record(from, to, channel, message)) return;
  if (to >= endpoints_.size() || endpoints_[to].dead || endpoints_[to].transport == nullptr) {
    return schedule(now() + options_.stream_latency,
                    [this, from, to] { report_down(from, to, false); });
  }
  streams_->send(static_cast<sim::EndpointId>(from), static_cast<sim::EndpointId>(to), channel,
                 std::move(message));
}

sim::GuardedStreams::Way SimNetwork::way_of(size_t endpoint) {
  sim::GuardedStreams::Way way;
  way.now = [this] { return now(); };
  way.carry = [this, endpoint](sim::EndpointId to, Channel channel, sim::Frame message) {
    carry(endpoint, to, channel, std::move(message));
  };
  way.look_at = [this, endpoint](Nanos at) {
    schedule(at, [this, endpoint] {
      SimTransport* const transport = endpoints_[endpoint].transport;
      if (transport == nullptr || endpoints_[endpoint].dead) return;
      if (transport->guard_->closing()) return transport->guard_->run_timers();
      transport->timer_due_ = true;
      tell(endpoint);
    });
  };
  way.lost = [this, endpoint](sim::EndpointId peer, const Status& why) {
    streams_->cut(static_cast<sim::EndpointId>(endpoint), peer);
    if (!told_.insert({endpoint, peer}).second) return;
    endpoints_[endpoint].transport->on_down({peer, false, why});
    schedule(now() + options_.stream_latency,
             [this, endpoint, peer] { report_down(peer, endpoint, false); });
  };
  way.closed = [this, endpoint] {
    endpoints_[endpoint].transport->said_goodbye_ = true;
    goodbye(endpoint);
  };
  return way;
}

Source SimNetwork::source_of(size_t endpoint) const {
  constexpr uint32_t kHosts = 10u << 24;
  return {{IpAddress::v4(kHosts + endpoints_[endpoint].place.host + 1),
           static_cast<uint16_t>(endpoint + 1)}};
}

}  // namespace mcast
