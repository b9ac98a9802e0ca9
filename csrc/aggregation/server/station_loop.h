// Drives a station (aggregation/fold/station.h) for any caller: one transport, one job. Time is an
// argument.
//
// Not thread-safe: call it where the station runs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregation/fold/station.h"
#include "aggregation/server/report.h"
#include "aggregation/server/station_planner.h"
#include "aggregation/server/station_runner.h"
#include "base/counters.h"
#include "base/monitor.h"
#include "transport/transport.h"

namespace mcast::service {

class StationLoop final : private StreamSink, private DatagramSink, private aggregation::Outlet {
 public:
  // `spec` must outlive this object. `transport` must expect no peers yet.
  StationLoop(const StationSpec& spec, std::unique_ptr<Transport> transport, Nanos now);

  Transport& transport() { return *transport_; }
  // Any thread: both values are constant.
  wire::Accept::Station where() const;
  uint32_t largest_datagram() const { return largest_datagram_; }

  // Handles arrived frames and polls the station; returns true if any had arrived.
  bool turn(Nanos now);
  // Time at which turn() has work that no event announces.
  Nanos deadline() const { return station_.deadline(); }
  // Returns why the job has ended; empty if it has not.
  const std::optional<std::string>& ended() const { return ended_; }
  // Ends the job with this reason, if it has not ended yet.
  void fail(const std::string& why);
  // Releases the station's memory after the job's end, whatever the reason.
  void leave();
  // Returns false if ranks have not received the goodbye yet.
  bool say_goodbye(Nanos now) { return transport_->stream().close_peers(now); }

  // Returns true if the state has changed since the last report.
  bool changed() const { return live_.changed; }
  // Current values, without `cpu`.
  const StationReport& report(Nanos now);

 private:
  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override;
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override;
  void on_refused(Cause cause, Source source) override;
  void on_datagram(ConstBytes) override {}  // stations receive nothing by multicast
  void send(Member to, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(Member to, Channel channel) const override;
  uint32_t busy_jobs() const override { return spec_.busy->jobs(); }

  void on_roster(Member from, ConstBytes frame);
  // Connects to the stations of a tree with which this one exchanges frames.
  void meet_partners(const wire::StationRoster& roster);
  void note(const wire::FrameHeader& header);
  void set_busy(bool busy);

  const StationSpec& spec_;
  const std::unique_ptr<Transport> transport_;
  const StreamAddress address_;
  const uint32_t largest_datagram_;
  Counters counters_;
  Monitor monitor_;
  StationPlanner planner_;
  aggregation::Station station_;
  std::vector<PeerId> peers_;    // by rank, then by station of a tree; kNoPeer if not connected
  std::vector<Member> members_;  // by peer
  std::vector<bool> connected_;  // by rank
  struct {
    StationReport report;
    bool changed = false;  // since the last report
  } live_;
  std::optional<std::string> ended_;
  Nanos now_ = 0;
  uint64_t next_operation_ = 0;  // no rank has opened this one or a later one
  bool busy_ = false;
};

}  // namespace mcast::service
