// Replaces the thread of aggregation/server/station_thread.cpp. A goodbye is sent behind all frames
// and needs no further turns.
#include "sim/world/sim_station.h"

#include <utility>

namespace mcast::sim {
namespace {

std::unique_ptr<SimTransport> guarded(SimSecurity& security, std::unique_ptr<SimTransport> own) {
  if (security.on()) own->guard(security.of_station(own->index()));
  return own;
}

}  // namespace

SimStation::SimStation(service::StationSpec spec, HostId host, SimThreads& all,
                       const SimClock& clock, const LaneCosts& costs)
    : SimThread(all, clock, costs),
      spec_(std::move(spec)),
      loop_(spec_, guarded(all.security(), all.attach(host, *this)), shown()) {
  run_as(static_cast<SimTransport&>(loop_.transport()));
  on_news();
}

void SimStation::end(Nanos) {
  told_to_end_ = true;
  on_news();
}

service::StationReport SimStation::report() const { return loop_.report(shown()); }

Nanos SimStation::act(Nanos now) {
  if (finished_) return kNever;
  if (!told_to_end_) {
    const bool events = loop_.turn(now);
    if (!loop_.ended()) return events ? now : loop_.deadline();
  }
  loop_.leave();
  (void)loop_.say_goodbye(now);
  finished_ = true;
  spec_.on_end();
  return kNever;
}

}  // namespace mcast::sim
