// A station of an aggregator as a node of the simulated network, for one group.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "aggregation/fold/station.h"
#include "aggregation/fold/station_list.h"
#include "collective/group_params.h"
#include "sim/network/sim_network.h"
#include "wire/aggregation.h"

namespace mcast::test {

class StationNode final : private aggregation::Outlet,
                          private aggregation::Planner,
                          private StreamSink {
 public:
  // `peers`: endpoints of the ranks, the first ones of the network. `stations`: all stations of the
  // set; this is the one at `index`. Members have the numbers of their endpoints.
  StationNode(std::unique_ptr<SimTransport> transport, const GroupParams& group, uint32_t version,
              std::vector<Station> stations, uint16_t index, Nanos now);

  // Makes the peer's key known; no connection is made yet.
  void meet(const StreamAddress& peer) { (void)transport_->stream().add_peer(peer); }
  StreamAddress address() { return transport_->stream().address(false); }
  size_t endpoint() const { return transport_->index(); }
  // Returns false if there is nothing to do before deadline().
  bool poll(Nanos now);
  Nanos deadline() const { return every != 0 ? next_ : station_.deadline(); }

  aggregation::Station& station() { return station_; }
  const Counters& counters() const { return counters_; }
  // Frames sent so far. The station dies instead of sending frame `last` + 1.
  uint64_t sent() const { return sent_; }
  uint64_t last = UINT64_MAX;
  bool spent() const { return sent_ >= last; }
  // Declines every operation.
  bool declines = false;
  // Interval at which it polls its streams; a large one makes a slow station.
  Nanos every = 0;

 private:
  void send(Member to, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(Member to, Channel channel) const override;
  uint32_t busy_jobs() const override { return 1; }
  Result<std::unique_ptr<const aggregation::WorkList>> plan(uint32_t roster,
                                                            const wire::Descriptor& descriptor,
                                                            size_t room) const override;
  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override;
  void learn(const wire::StationRoster& roster);
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override;

  std::unique_ptr<SimTransport> transport_;
  const GroupParams group_;
  std::map<uint32_t, std::vector<Station>> sets_;  // by version: the first, and those of rosters
  const uint16_t index_;
  Nanos now_, next_ = 0;
  uint64_t sent_ = 0;
  Counters counters_;
  aggregation::Station station_;
};

}  // namespace mcast::test
