// Aggregation, the ranks' side. A reduction's segments are dealt to stations and owners when it is
// posted, by the set of stations in force (station_deal.h). All ranks compute the same deal, so it
// is not sent.
//   1. A rank that has posted opens the operation at its stations. They grant and take
//      contributions as owners do (reductions.cpp), and send each segment's fold to its owner.
//   2. The owner places the fold, adds its own contribution last if it has kept that, and treats
//      the segment like one that it has folded itself.
//   3. The operation ends when it is complete everywhere. Until then every rank keeps its input, so
//      that any segment of a station can be contributed to the owner instead.
// A station is lost when its stream ends, when it is silent, when it sends an invalid frame, or
// when another rank reports it lost: that rank's contributions would be missing, so its report is
// enough. The loss is flooded, and every owner takes over the segments that it still expects from
// the station. Each segment has one authority, its owner, which decides where it is folded: later
// data from elsewhere is stale. Stations may form a tree (station_deal.h): a rack's leaves fold its
// contributions, and stations at the top fold the racks' sums. A tree fails as a whole: with one
// station an operation loses all of them.
// Cost, besides a reduction's (reductions.cpp): aggregation/plan/placement.h.
#include "aggregation/member/stations.h"

#include <algorithm>

#include "wire/aggregation.h"

namespace mcast {

std::unique_ptr<ExternalFold> Stations::make(GroupContext& context, Reductions& reductions) {
  return std::make_unique<Stations>(context, reductions);
}

void Stations::use(const StationSet& set, std::span<const StreamAddress> at) {
  for (size_t i = 0; i < at.size(); i++) {
    table_.meet(set.stations[i].member);
    g_.port.meet(set.stations[i].member, at[i]);
  }
  table_.install(set);
}

bool Stations::reachable(Member station) const {
  const StationTable::Contact* const contact = table_.contact(station);
  return contact != nullptr && contact->down.ok();
}

std::string Stations::waiting_text(Sequence sequence, Nanos now) const {
  return stragglers_.text(g_.ops.base(), sequence, now);
}

void Stations::report(AggregationReport& report, Nanos now) const {
  for (const auto& [kind, planned] : planned_) {
    AggregationReport::Plan& plan = report.plans.emplace_back();
    plan.kind = kind;
    plan.sequence = planned.sequence;
    plan.bytes = planned.bytes;
    plan.placement = planned.placement;
    const StationTrial::Times times =
        trial_.times({kind == wire::Kind::kReduceScatter, planned.bytes});
    plan.with = static_cast<uint64_t>(times.with);
    plan.without = static_cast<uint64_t>(times.without);
    for (const Station& s : planned.stations) {
      plan.stations.push_back({roster_.address_of(s.member), s.capacity, s.out});
    }
  }
  report.waiting = stragglers_.oldest(g_.ops.base(), now);
}

std::unique_ptr<FoldShare> Stations::share_of(const Operation& op) {
  const Sequence sequence = op.post.sequence;
  const StationSet* const set = table_.of(sequence);
  const wire::Descriptor& d = op.post.descriptor;
  const bool shown = op.plan.large && op.plan.reduce.way != ReduceWay::kToRoot;
  if (op.post.delegated || (!shown && set == nullptr)) return nullptr;
  const std::vector<Station> stations = set == nullptr ? std::vector<Station>() : set->stations;
  StationDeal deal = deal_out(d, g_.params.agreed, g_.params.tag, stations);
  if (set != nullptr && set->resting && deal.deal) {
    deal.rest();
    if (compares()) rested_.push_back(sequence);
  }
  if (shown) planned_[d.kind] = {sequence, input_bytes(d), deal.placement, stations};
  if (!deal.deal) return nullptr;
  g_.counters.add(Counter::agg_operations);
  std::vector<Member> members;
  for (const Station& station : stations) members.push_back(station.member);
  return std::make_unique<FoldShare>(std::move(members), std::move(deal.deal),
                                     std::move(deal.leaves), deal.kept);
}

uint64_t Stations::input_bytes(const wire::Descriptor& d) const {
  return d.kind == wire::Kind::kReduceScatter ? d.bytes * g_.size : d.bytes;
}

void Stations::on_roster(bool others, Nanos now) {
  if (others) return trial_.reset(now);
  trial_.on_change(table_.latest()->resting, now);
}

// From the call on, with and without stations: late ranks slow both down in the same way. An
// operation that was diverted, or that completed without some ranks, is an example of neither.
void Stations::on_finished(const Operation& op, Nanos now) {
  if (!compares()) return;
  const bool rested = !rested_.empty() && rested_.front() == op.post.sequence;
  while (!rested_.empty() && rested_.front() <= op.post.sequence) rested_.pop_front();
  if (!op.reduce || op.reduce->partial || (!rested && !op.reduce->dealt)) return;
  if (!rested) {
    const std::vector<bool>& off = op.reduce->dealt->off;
    if (std::find(off.begin(), off.end(), true) != off.end()) return;
  }
  const wire::Descriptor& d = op.plan.descriptor;
  trial_.add({d.kind == wire::Kind::kReduceScatter, input_bytes(d)}, rested, op.post.posted, now);
}

void Stations::start(Operation& op) {
  if (!op.reduce || !op.reduce->dealt) return;
  dealt_.push_back(op.post.sequence);
  unopened_.push_back(op.post.sequence);
  const StationSet& set = set_of(op);
  for (size_t j = 0; j < set.stations.size(); j++) {
    if (set.stations[j].out) drop(op, static_cast<uint16_t>(j), "a station of the tree is lost");
  }
  open_ready();
}

// A partial result can be placed only once our own contribution to it can be read; if this rank is
// excused, once the other excused ranks are known.
bool Stations::openable(const Operation& op) const {
  if (op.reduce->excused()) return op.reduce->partial.has_value();
  return !op.reduce->dealt->kept || op.reduce->readable(g_.self, op.reduce->length(g_.self));
}

// In order, because a station takes them in order.
void Stations::open_ready() {
  while (!dealt_.empty() && dealt_.front() < g_.ops.base()) dealt_.pop_front();
  while (!unopened_.empty()) {
    Operation* const op = g_.find(unopened_.front());
    if (op != nullptr && !op->finished) {
      const auto ahead = std::find(dealt_.begin(), dealt_.end(), op->post.sequence);
      if (!openable(*op) || static_cast<size_t>(ahead - dealt_.begin()) >= kMostOpen) return;
      open(*op);
    }
    unopened_.pop_front();
  }
}

void Stations::open(Operation& op) {
  FoldShare& share = *op.reduce->dealt;
  share.opened = true;
  wire::Writer body;
  wire::put_agg_open(body, {set_of(op).version, op.post.descriptor});
  tell(op, wire::FrameType::kAggOpen, body.bytes());
  if (op.reduce->partial) tell_partial(op);
}

// Sends to all stations that fold for the operation.
void Stations::tell(const Operation& op, wire::FrameType type, ConstBytes body) {
  const FoldShare& share = *op.reduce->dealt;
  const StationSet& set = set_of(op);
  for (size_t j = 0; j < set.stations.size(); j++) {
    const Station& station = set.stations[j];
    const bool idle = !share.leaves.any() && share.deal.length(static_cast<uint16_t>(j)) == 0;
    if (station.out || idle) continue;
    g_.send_frame(station.member, Channel::kReduce, type, op.post.sequence, op.plan.hash, body);
  }
  if (share.broken) tell_broken(op);
}

// A station of a tree would wait for the missing one, and accept no later operation.
void Stations::drop(Operation& op, uint16_t j, const std::string& why) {
  FoldShare& share = *op.reduce->dealt;
  if (!share.leaves.any()) return reductions_.drop_station(op, j);
  if (share.broken) return;
  const StationSet& set = set_of(op);
  share.broken = why;
  for (size_t i = 0; i < set.stations.size(); i++) {
    reductions_.drop_station(op, static_cast<uint16_t>(i));
  }
  if (share.opened) tell_broken(op);
}

// Sent on the same channel as AggOpen, after it.
void Stations::tell_broken(const Operation& op) {
  const FoldShare& share = *op.reduce->dealt;
  wire::Writer body;
  wire::put_agg_decline(body, {static_cast<uint8_t>(Code::kUnavailable), *share.broken});
  for (const Station& station : set_of(op).stations) {
    if (station.out) continue;
    g_.send_frame(station.member, Channel::kReduce, wire::FrameType::kAggDecline, op.post.sequence,
                  op.plan.hash, body.bytes());
  }
}

// Sent on the channel of AggOpen, after it. Until it arrives no station folds a segment of ours
// without these ranks, so we always know which inputs a result contains.
void Stations::tell_partial(const Operation& op) {
  if (!op.reduce->dealt || !op.reduce->dealt->opened) return;
  wire::Writer body;
  wire::put_partial(body, *op.reduce->partial);
  tell(op, wire::FrameType::kPartial, body.bytes());
}

void Stations::on_frame(const Frame& header, ConstBytes body, Nanos now) {
  const StationTable::Contact* const contact = table_.contact(header.member);
  if (contact == nullptr) return g_.counters.add(Counter::malformed);
  if (!contact->down.ok()) return g_.counters.add(Counter::agg_stale);
  g_.counters.add(Counter::frames_received);
  g_.counters.add(Counter::frame_bytes_received, wire::kFrameHeader + body.size());
  table_.heard(header.member, now);
  watch_.heard(header.member, now);
  if (const Fault fault = on_station_frame(header, body, now)) {
    g_.counters.add(Counter::agg_malformed);
    give_up(header.member, std::string("it broke the protocol: ") + fault);
  }
}

// A pong describes what the station's oldest segment waits for, which may be normal. AggStale
// reports that contributions to a segment are missing.
Stations::Fault Stations::on_wait(const Frame& header, ConstBytes body, Nanos now) {
  const bool stale = header.type == wire::FrameType::kAggStale;
  wire::AggWait wait;
  if (body.empty() && !stale) return nullptr;
  if (!wire::parse_agg_wait(body, wait)) return "a report that does not parse";
  if (stale && g_.tree.is_top(g_.self)) {
    stragglers_.on_report(header.member, header.sequence, wait, g_.reductions.hosts, now);
  }
  return nullptr;
}

Stations::Fault Stations::on_station_frame(const Frame& header, ConstBytes body, Nanos now) {
  using T = wire::FrameType;
  if (header.type == T::kPong || header.type == T::kAggStale) return on_wait(header, body, now);
  if (header.type != T::kReduceGrant && header.type != T::kAggResult &&
      header.type != T::kAggDecline) {
    return "a frame that stations do not send";
  }
  if (header.sequence >= g_.ops.next()) return "an operation that this rank has not called";
  Operation* const op = g_.find(header.sequence);
  if (op == nullptr || op->finished) {
    g_.counters.add(Counter::agg_stale);
    return nullptr;
  }
  if (!op->reduce || !op->reduce->dealt || !op->reduce->dealt->opened) {
    return "an operation that this rank has not opened there";
  }
  const std::vector<Station>& stations = set_of(*op).stations;
  const auto at = std::find_if(stations.begin(), stations.end(),
                               [&](const Station& s) { return s.member == header.member; });
  if (at == stations.end()) return "an operation in which it has no part";
  if (header.argument != op->plan.hash)
    return "an operation that differs from the one that this rank called";
  const auto station = static_cast<uint16_t>(at - stations.begin());
  if (op->reduce->dealt->off[station]) {
    g_.counters.add(Counter::agg_stale);
    return nullptr;
  }
  g_.ops.touch(*op);
  if (header.type == T::kReduceGrant) return on_grant(*op, station, body);
  if (header.type == T::kAggResult) return on_result(*op, station, body);
  return on_decline(*op, station, body);
}

Stations::Fault Stations::on_grant(Operation& op, uint16_t station, ConstBytes body) {
  wire::Reader in(body);
  const auto end = in.get<uint32_t>();
  if (in.done() && op.reduce->excused()) return nullptr;
  return in.done() && op.reduce->sender->on_grant(g_.size + station, end)
             ? nullptr
             : "a grant beyond its list";
}

// Places only segments that are dealt to the station and expected from it.
Stations::Fault Stations::on_result(Operation& op, uint16_t station, ConstBytes body) {
  ReduceRun& run = *op.reduce;
  const FoldShare& share = *run.dealt;
  wire::AggResult result;
  if (!wire::parse_agg_result(body, result)) return "a result that does not parse";
  if (result.number >= share.deal.length(station)) return "a result beyond its list";
  const Deal::Entry entry = share.deal.entry(station, result.number);
  const bool partial = result.form == wire::ResultForm::kPartial;
  size_t contributors = run.contributors().size();
  if (run.partial) contributors = run.partial->contributors;
  if (share.kept && !run.excused()) contributors--;
  if (entry.owner != g_.self) return "a result for another rank";
  if (partial != share.kept || result.contributors != contributors) {
    return "a result of other contributions";
  }
  if (!run.place(entry.segment, partial, result.payload)) {
    return run.host && run.host->refused() ? nullptr : "a result twice, or of another length";
  }
  g_.counters.add(Counter::agg_results);
  g_.counters.add(Counter::reduce_bytes_received, result.payload.size());
  reductions_.contribution_progress(op);
  return nullptr;
}

Stations::Fault Stations::on_decline(Operation& op, uint16_t station, ConstBytes body) {
  wire::AggDecline decline;
  if (!wire::parse_agg_decline(body, decline)) return "a refusal that does not parse";
  g_.counters.add(Counter::agg_declined);
  drop(op, station, decline.text);
  return nullptr;
}

void Stations::on_rank_frame(const Frame& header, ConstBytes body, Nanos now) {
  if (header.type == wire::FrameType::kAggGone) return on_gone(header, body);
  roster_.on_frame(header, body, now);
}

bool Stations::agree(Nanos now) {
  roster_.drive(now);
  return roster_.wants_line();
}

void Stations::on_gone(const Frame& header, ConstBytes body) {
  wire::AggGone gone;
  if (!wire::parse_agg_gone(body, gone) || !g_.is_station(gone.station)) {
    return g_.counters.add(Counter::malformed);
  }
  lose(gone.roster, gone.station, gone.text, header.member);
}

void Stations::on_down(Member station, const Status& why) { give_up(station, why.message()); }

void Stations::give_up(Member station, const std::string& why) {
  table_.down(station, Status(Code::kPeerLost, why));
  for (const uint32_t version : table_.versions_with(station)) {
    lose(version, station,
         "rank " + std::to_string(g_.self) + " has lost its connection to it: " + why);
  }
}

void Stations::lose(uint32_t version, Member station, const std::string& why, Member told_by) {
  if (!table_.lose(version, station)) return;
  g_.counters.add(Counter::agg_lost);
  wire::Writer body;
  wire::put_agg_gone(body, {version, station, why});
  g_.flood(wire::FrameType::kAggGone, 0, 0, body.bytes(), told_by);
  roster_.on_lost(version, station, why);
  for (const Sequence sequence : dealt_) {
    Operation* const op = g_.find(sequence);
    if (op == nullptr || op->finished) continue;
    const StationSet& set = set_of(*op);
    for (size_t j = 0; j < set.stations.size() && set.version == version; j++) {
      if (set.stations[j].member != station) continue;
      drop(*op, static_cast<uint16_t>(j), "a station of the tree is lost");
      g_.ops.touch(*op);
    }
  }
}

void Stations::drive(Nanos now, bool drained) {
  const StationSet* const set = table_.latest();
  if (set == nullptr) return;  // no set has ever been in force
  open_ready();
  if (compares() && trial_.wants_change(now) && !roster_.rest(!trial_.resting())) {
    trial_.put_off(now);
  }
  // A station that was lost before its set was in force, or that we have never met.
  for (const Station& s : set->stations) {
    const StationTable::Contact* const contact = table_.contact(s.member);
    if (s.out || (contact != nullptr && contact->down.ok())) continue;
    give_up(s.member, contact != nullptr ? contact->down.message() : "its address is unknown");
  }
  watch(now);
  std::vector<Member> ping;
  watch_.due(now, ping);
  for (const Member station : ping) {
    g_.counters.add(Counter::pings_sent);
    g_.send_frame(station, Channel::kControl, wire::FrameType::kPing, 0, 0);
  }
  const Member silent = drained ? watch_.silent(now) : kNoMember;
  if (silent == kNoMember) return;
  give_up(silent, "silent for " + seconds_text(watch_.silence(silent, now)));
  watch(now);
}

// Silence counts while an operation is in flight that a station has a part in.
void Stations::watch(Nanos now) {
  std::vector<Member> used;
  const StationSet* last = nullptr;
  for (const Sequence sequence : dealt_) {
    const Operation* const op = g_.find(sequence);
    if (op == nullptr || op->finished || &set_of(*op) == last) continue;
    last = &set_of(*op);
    for (const Station& s : last->stations) {
      if (!s.out) used.push_back(s.member);
    }
  }
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  if (used != watch_.watched()) watch_ = Liveness(used, g_.params.aggregator_patience);
  watch_.set_active(!used.empty(), now);
  watch_.on_poll(now);
}

}  // namespace mcast
