// Handles frames from the ranks, then polls the station. The stream has verified the uid of each
// sender, so a frame's sender is looked up by its peer; only the ranks of the ask can connect.
#include "aggregation/server/station_loop.h"

#include <algorithm>

#include "base/random.h"
#include "wire/frame.h"

namespace mcast::service {
namespace {

// Ranks on the hosts whose bits are set.
std::vector<Member> ranks_of(const Hosts& hosts, const std::vector<uint64_t>& bits) {
  std::vector<Member> ranks;
  for (uint32_t h = 0; h < hosts.count() && h / 64 < bits.size(); h++) {
    if ((bits[h / 64] >> (h % 64) & 1) == 0) continue;
    ranks.insert(ranks.end(), hosts.members(h).begin(), hosts.members(h).end());
  }
  return ranks;
}

// Sets the keys, if there are any, before a rank can connect.
std::vector<PeerId> expect_ranks(Stream& stream, const wire::Ask& ask) {
  for (size_t r = 0; r < ask.keys.size(); r++) {
    (void)stream.add_peer({.uid = ask.uids[r], .host = "", .port = 0, .key = ask.keys[r]});
  }
  return stream.expect(ask.uids);
}

}  // namespace

StationLoop::StationLoop(const StationSpec& spec, std::unique_ptr<Transport> transport, Nanos now)
    : spec_(spec),
      transport_(std::move(transport)),
      address_(transport_->stream().address(false)),
      largest_datagram_(static_cast<uint32_t>(transport_->datagram().max_datagram({1, 1, false}))),
      planner_(spec_.ask, address_.uid, spec_.deal),
      station_(spec_.params, planner_, *this, counters_, now),
      peers_(expect_ranks(transport_->stream(), spec_.ask)),
      connected_(spec_.ask.uids.size()) {
  members_.assign(*std::max_element(peers_.begin(), peers_.end()) + 1, kNoMember);
  for (size_t m = 0; m < peers_.size(); m++) members_[peers_[m]] = static_cast<Member>(m);
  monitor_.watch_sources(secure_random64());
  live_.report.address = address_.host + ":" + std::to_string(address_.port);
  live_.report.memory = station_.job()->memory();
}

wire::Accept::Station StationLoop::where() const {
  return {.uid = address_.uid,
          .host = address_.host,
          .port = address_.port,
          .capacity = 0,
          .key = address_.key};
}

bool StationLoop::turn(Nanos now) {
  now_ = now;
  const size_t events =
      transport_->stream().poll(*this, now_) + transport_->datagram().receive(*this, kMaxBulkFrame);
  station_.advance(now_);
  if (station_.closed()) fail(*station_.closed());
  set_busy(station_.job() != nullptr && station_.job()->operations() > 0);
  live_.changed = live_.changed || events > 0;
  return events > 0;
}

void StationLoop::leave() {
  set_busy(false);
  station_.on_bye();
}

void StationLoop::on_frame(PeerId peer, Channel, ConstBytes frame) {
  const Member from = peer < members_.size() ? members_[peer] : kNoMember;
  if (from == kNoMember) return;  // not a rank of the ask
  if (from < connected_.size()) connected_[from] = true;
  wire::FrameHeader header;
  if (wire::parse_frame(frame, header)) {
    if (header.type == wire::FrameType::kRoster && from < connected_.size()) {
      return on_roster(from, frame);
    }
    note(header);
  }
  station_.on_frame(from, frame, now_);
}

void StationLoop::on_roster(Member from, ConstBytes frame) {
  counters_.add(Counter::frames_received);
  counters_.add(Counter::frame_bytes_received, frame.size());
  wire::FrameHeader header;
  wire::StationRoster roster;
  if (!wire::parse_frame(frame, header) || !wire::verify_frame(frame) || header.member != from ||
      header.group_tag != spec_.params.tag ||
      !wire::parse_roster(frame.subspan(wire::kFrameHeader), roster)) {
    counters_.add(Counter::agg_malformed);
    return fail("rank " + std::to_string(from) + " sent a roster that does not parse");
  }
  if (const Status status = planner_.learn(roster); !status.ok()) {
    counters_.add(Counter::agg_malformed);
    return fail("rank " + std::to_string(from) + ": " + status.message());
  }
  meet_partners(roster);
}

// A rack worker connects to the stations at the top. A station that does not know it yet refuses
// it, and the transport tries again for a while.
void StationLoop::meet_partners(const wire::StationRoster& roster) {
  const Racks& racks = spec_.params.racks;
  const auto leaf = [&racks](const wire::StationEntry& s) {
    return racks.find(s.rack).has_value();
  };
  const auto self = std::find_if(roster.stations.begin(), roster.stations.end(),
                                 [this](const auto& s) { return s.uid == address_.uid; });
  for (const wire::StationEntry& station : roster.stations) {
    if (leaf(station) == leaf(*self)) continue;
    const Member member = planner_.member_of(station);
    if (member < peers_.size() && peers_[member] != kNoPeer) continue;
    Stream& stream = transport_->stream();
    // A rack worker connects by itself.
    const bool comes = leaf(station);
    PeerId peer = stream.add_peer({station.uid, comes ? "" : station.host,
                                   comes ? uint16_t{0} : station.port, station.key, true});
    if (comes) peer = stream.expect(std::span(&station.uid, 1))[0];
    if (member >= peers_.size()) peers_.resize(member + 1u, kNoPeer);
    if (peer >= members_.size()) members_.resize(peer + 1, kNoMember);
    peers_[member] = peer;
    members_[peer] = member;
  }
}

void StationLoop::note(const wire::FrameHeader& header) {
  if (header.type != wire::FrameType::kAggOpen || header.sequence < next_operation_) return;
  live_.report.operations++;
  next_operation_ = uint64_t{header.sequence} + 1;
}

void StationLoop::on_peer_down(PeerId peer, const Status&, bool) {
  const Member from = peer < members_.size() ? members_[peer] : kNoMember;
  if (from == kNoMember) return;
  if (from < connected_.size()) connected_[from] = false;
  station_.on_stream_end(from, now_);
}

void StationLoop::on_refused(Cause cause, Source source) {
  monitor_.note(cause, source, now_);
  live_.changed = true;
}

void StationLoop::send(Member to, Channel channel, std::span<const ConstBytes> parts) {
  live_.report.frames_out++;
  for (const ConstBytes& part : parts) live_.report.bytes_out += part.size();
  transport_->stream().send(peers_[to], channel, parts);
}

size_t StationLoop::queued(Member to, Channel channel) const {
  return transport_->stream().queued(peers_[to], channel);
}

void StationLoop::set_busy(bool busy) {
  if (busy == busy_) return;
  busy_ = busy;
  busy ? spec_.busy->station_begins() : spec_.busy->station_ends();
}

void StationLoop::fail(const std::string& why) {
  if (!ended_) ended_ = why;
}

const StationReport& StationLoop::report(Nanos now) {
  live_.changed = false;
  live_.report.frames_in = counters_.get(Counter::frames_received);
  live_.report.bytes_in = counters_.get(Counter::frame_bytes_received);
  live_.report.folded_bytes = counters_.get(Counter::reduce_bytes_received);
  live_.report.staged_bytes = counters_.get(Counter::agg_staged_bytes);
  live_.report.declined = counters_.get(Counter::agg_declined);
  live_.report.repeated = counters_.get(Counter::agg_repeated);
  live_.report.stale = counters_.get(Counter::agg_stale);
  live_.report.malformed = counters_.get(Counter::agg_malformed);
  for (size_t i = 0; i < kCauses; i++) {
    live_.report.refused[i] = monitor_.count(static_cast<Cause>(i));
  }
  live_.report.connected =
      static_cast<uint32_t>(std::count(connected_.begin(), connected_.end(), true));
  aggregation::Job* const job = station_.job();
  live_.report.open_operations = job != nullptr ? job->operations() : 0;
  live_.report.blocks = job != nullptr ? job->blocks() : 0;
  live_.report.memory = 0;
  if (job != nullptr) {
    live_.report.memory = job->memory() + aggregation::kMostLists - job->list_room();
  }
  live_.report.oldest.reset();
  if (const auto waiting = job != nullptr ? job->waiting(now) : std::nullopt) {
    live_.report.oldest = {waiting->sequence, now - waiting->wait.age_ms * kMilli,
                           ranks_of(spec_.params.hosts, waiting->wait.missing)};
  }
  return live_.report;
}

}  // namespace mcast::service
