// Does the work of an aggregator's thread: passes frames to the station and sends its frames.
#include "aggregation/station_node.h"

#include <utility>

#include "wire/frame.h"
#include "wire/station_hash.h"

namespace mcast::test {
namespace {

aggregation::JobParams job_params(const GroupParams& group, Member self) {
  aggregation::JobParams params;
  params.tag = group.tag;
  params.self = self;
  params.hosts = group.host_of.empty() ? Hosts(group.agreed.members) : Hosts(group.host_of);
  params.racks = group.agreed.racks;
  params.fold = group.agreed.fold;
  params.segment = contribution_segment(group.agreed);
  params.incast = group.agreed.incast;
  params.deadline = 100 * kMilli;
  return params;
}

}  // namespace

StationNode::StationNode(std::unique_ptr<SimTransport> transport, const GroupParams& group,
                         uint32_t version, std::vector<Station> stations, uint16_t index, Nanos now)
    : transport_(std::move(transport)),
      group_(group),
      sets_{{version, std::move(stations)}},
      index_(index),
      now_(now),
      station_(job_params(group, sets_[version][index].member), *this, *this, counters_, now) {}

bool StationNode::poll(Nanos now) {
  if (now < next_) return false;
  next_ = now + every;
  now_ = now;
  const size_t events = transport_->stream().poll(*this, now);
  station_.advance(now);
  return events > 0;
}

void StationNode::send(Member to, Channel channel, std::span<const ConstBytes> parts) {
  if (spent()) return;
  sent_++;
  transport_->stream().send(to, channel, parts);
}

size_t StationNode::queued(Member to, Channel channel) const {
  return transport_->stream().queued(to, channel);
}

Result<std::unique_ptr<const aggregation::WorkList>> StationNode::plan(
    uint32_t roster, const wire::Descriptor& descriptor, size_t room) const {
  const auto set = sets_.find(roster);
  if (set == sets_.end()) return Status(Code::kUnavailable, "another roster");
  if (declines) return Status(Code::kResourceExhausted, "no memory for this one");
  return make_station_list(descriptor, group_.agreed, group_.tag, set->second, index_, room);
}

// Takes the stations in the roster's order, which all members share.
void StationNode::learn(const wire::StationRoster& roster) {
  std::vector<Station> stations = sets_.begin()->second;
  const std::vector<uint64_t> hashes = wire::station_hashes(roster);
  for (size_t i = 0; i < stations.size(); i++) stations[i].hash = hashes[i];
  sets_.try_emplace(roster.version, std::move(stations));
}

void StationNode::on_frame(PeerId peer, Channel, ConstBytes frame) {
  wire::FrameHeader header;
  wire::StationRoster roster;
  if (wire::parse_frame(frame, header) && header.type == wire::FrameType::kRoster &&
      wire::parse_roster(frame.subspan(wire::kFrameHeader), roster)) {
    return learn(roster);
  }
  if (!station_.closed()) station_.on_frame(static_cast<Member>(peer), frame, now_);
}

void StationNode::on_peer_down(PeerId peer, const Status&, bool) {
  // The network reports every end to everybody; the endpoints of other stations have their own
  // numbers.
  if (station_.closed()) return;
  station_.on_stream_end(static_cast<Member>(peer), now_);
}

}  // namespace mcast::test
