// A station of an aggregator in a simulated world, with the loop of the real one
// (aggregation/server/station_loop.h). Threads: one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "aggregation/server/station_loop.h"
#include "sim/world/sim_thread.h"

namespace mcast::sim {

class SimStation final : public SimThread, public service::StationRunner {
 public:
  SimStation(service::StationSpec spec, HostId host, SimThreads& all, const SimClock& clock,
             const LaneCosts& costs);

  wire::Accept::Station where() const override { return loop_.where(); }
  uint32_t largest_datagram() const override { return loop_.largest_datagram(); }
  void end(Nanos patience) override;
  std::optional<std::string> ended() const override { return loop_.ended(); }
  bool finished() const override { return finished_; }
  service::StationReport report() const override;

 private:
  Nanos act(Nanos now) override;

  const service::StationSpec spec_;
  mutable service::StationLoop loop_;
  bool told_to_end_ = false, finished_ = false;
};

}  // namespace mcast::sim
