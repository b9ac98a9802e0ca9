// An aggregator's process in a simulated world: the real jobs and stations
// (csrc/aggregation/server), with an endpoint of the network as its listener and simulated turns as
// its threads. Threads: one.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "aggregation/server/jobs.h"
#include "sim/world/sim_station.h"
#include "sim/world/sim_thread.h"
#include "wire/record_stream.h"

namespace mcast::sim {

class SimAggregator final : public SimThread, private service::Links, private StreamSink {
 public:
  // `process`: its uid.
  SimAggregator(const service::Options& options, HostId host, uint64_t process, SimThreads& all,
                const SimClock& clock, const LaneCosts& costs);
  ~SimAggregator() override;

  // The endpoint at which groups send their requests.
  PeerId peer() const { return static_cast<PeerId>(endpoint_->index()); }
  // Ends as the product does at SIGTERM: asks groups to release it, and drops those that have not
  // done so after `patience`.
  void end(Nanos patience);
  // Returns true once it has ended in order.
  bool over() const { return over_; }
  service::Report report() const;

 private:
  struct Asker {
    IpAddress host{};
    bool finished = false;  // closed by this side
    wire::RecordReader in{wire::kMaxAdmission};
  };

  Nanos act(Nanos now) override;
  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override;
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override;
  void keep(service::LinkId) override {}
  void send_text(service::LinkId link, const std::string& text) override;
  void finish(service::LinkId link, Nanos now) override;
  service::JobSurroundings surroundings(HostId host, uint64_t process, const SimClock& clock,
                                        const LaneCosts& costs);

  const service::Options options_;
  std::unique_ptr<SimTransport> endpoint_;
  std::map<service::LinkId, Asker> askers_;
  service::Jobs jobs_;
  Nanos stop_at_ = kNever;
  bool over_ = false;
};

}  // namespace mcast::sim
