// A turn handles the records that have arrived and then advances the jobs, as in
// aggregation/server/aggregator.cpp. A link's number combines the peer and the number that the peer
// gave the connection.
#include "sim/world/sim_aggregator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "aggregation/server/deal_work.h"
#include "sim/world/sim_records.h"

namespace mcast::sim {
namespace {

constexpr uint64_t kDescriptors = 1 << 20;  // a simulated process has enough
constexpr uint32_t kHostAddress = 10u << 24;

service::LinkId link_of(PeerId peer, uint32_t connection) {
  return uint64_t{peer} << 32 | connection;
}
PeerId peer_of(service::LinkId link) { return static_cast<PeerId>(link >> 32); }
uint32_t connection_of(service::LinkId link) { return static_cast<uint32_t>(link); }

}  // namespace

SimAggregator::SimAggregator(const service::Options& options, HostId host, uint64_t process,
                             SimThreads& all, const SimClock& clock, const LaneCosts& costs)
    : SimThread(all, clock, costs),
      options_(options),
      endpoint_(all.attach(host, *this)),
      jobs_(options_, *this, surroundings(host, process, clock, costs)) {
  run_as(*endpoint_);
}

SimAggregator::~SimAggregator() = default;

service::JobSurroundings SimAggregator::surroundings(HostId host, uint64_t process,
                                                     const SimClock& clock,
                                                     const LaneCosts& costs) {
  service::JobSurroundings here;
  here.deal = service::deal_work();
  here.wake = [this] { on_news(); };
  here.process = process;
  here.guard = threads().security().of_aggregators();
  here.run = [this, host, &clock, &costs](
                 service::StationSpec spec) -> Result<std::unique_ptr<service::StationRunner>> {
    return std::unique_ptr<service::StationRunner>(
        std::make_unique<SimStation>(std::move(spec), host, threads(), clock, costs));
  };
  here.most_descriptors = [] { return kDescriptors; };
  here.make_room = [](uint64_t) {};
  return here;
}

void SimAggregator::end(Nanos patience) {
  stop_at_ = std::min(stop_at_, shown() + patience);
  on_news();
}

service::Report SimAggregator::report() const {
  service::Report report;
  report.now = shown();
  jobs_.describe(report);
  return report;
}

Nanos SimAggregator::act(Nanos now) {
  if (over_) return kNever;
  (void)static_cast<Transport&>(*endpoint_).stream().poll(*this, now);
  jobs_.advance(now);
  if (stop_at_ == kNever) return jobs_.deadline();
  jobs_.drain();
  if (now >= stop_at_) jobs_.end_all("the aggregator ends", now);
  if (!jobs_.empty()) return std::min(jobs_.deadline(), now >= stop_at_ ? kNever : stop_at_);
  over_ = true;
  (void)static_cast<Transport&>(*endpoint_).stream().close_peers(now);
  return kNever;
}

void SimAggregator::on_frame(PeerId peer, Channel, ConstBytes frame) {
  const RecordFrame record = read_record_frame(frame);
  const service::LinkId link = link_of(peer, record.connection);
  const bool known = askers_.count(link) > 0;
  if (!known && (record.end || over_)) return;
  Asker& asker = askers_[link];
  if (!known) {
    asker.host = IpAddress::v4(kHostAddress + peer);
    jobs_.on_link(link);
  }
  asker.in.append(record.bytes);
  for (std::string text; !asker.finished && asker.in.next(text);) {
    jobs_.on_record(link, asker.host, text, shown());
  }
  if (record.end && !asker.finished) jobs_.on_link_end(link, !asker.in.between());
  if (record.end || asker.finished) askers_.erase(link);
}

void SimAggregator::on_peer_down(PeerId peer, const Status&, bool) {
  std::vector<service::LinkId> gone;
  for (const auto& [link, asker] : askers_) {
    if (peer_of(link) == peer) gone.push_back(link);
  }
  for (const service::LinkId link : gone) {
    jobs_.on_link_end(link, false);
    askers_.erase(link);
  }
}

void SimAggregator::send_text(service::LinkId link, const std::string& text) {
  if (askers_.count(link) == 0) return;
  send_record_frame(*endpoint_, peer_of(link), {connection_of(link), false, wire::framed(text)});
}

// The link's record may be in use by the caller, so it is only marked; on_frame() erases it.
void SimAggregator::finish(service::LinkId link, Nanos) {
  const auto at = askers_.find(link);
  if (at == askers_.end() || std::exchange(at->second.finished, true)) return;
  send_record_frame(*endpoint_, peer_of(link), {connection_of(link), true, {}});
}

}  // namespace mcast::sim
