// Roster goes down the tree with the admitted stations. Every rank connects to those it does not
// know, pings them, and waits until each has replied or failed, at most patience(). When its
// children have replied, too, it sends RosterReach up: the stations that its whole subtree reaches.
// A rank also floods a station that it cannot reach as AggGone, whose text gives the rank and the
// reason. If all ranks have reached all stations, the top sets the cut-over, and the roster is in
// force behind it. Otherwise the top begins again with those that all have reached, under the next
// version. So a version that gets a cut-over is equal on all ranks without further messages, at the
// cost of one more trip if a station has failed.
//
// A station that is lost between its test and the cut-over is in force and out: deals include it,
// owners fold the segments that are dealt to it, and its aggregator is asked again. Stations that
// are no longer needed stay connected until the operations before the cut-over are complete
// everywhere.
#include "aggregation/member/roster_change.h"

#include <algorithm>
#include <utility>

#include "aggregation/member/stations.h"
#include "wire/station_hash.h"

namespace mcast {
namespace {

constexpr size_t kMostRosterBytes = kMaxControlFrame - wire::kFrameHeader;

std::vector<std::byte> version_body(uint32_t version) {
  wire::Writer body;
  body.put<uint32_t>(version);
  return {body.bytes().begin(), body.bytes().end()};
}

std::vector<std::byte> roster_body(const wire::StationRoster& roster) {
  wire::Writer body;
  wire::put_roster(body, roster);
  return {body.bytes().begin(), body.bytes().end()};
}

}  // namespace

RosterChange::RosterChange(GroupContext& context, Stations& stations)
    : g_(context),
      stations_(stations),
      table_(stations.table()),
      cutover_(context, {wire::FrameType::kRosterStop, wire::FrameType::kRosterReady,
                         wire::FrameType::kRosterAt}) {}

void RosterChange::propose(std::vector<wire::StationEntry> stations) {
  if (stations.size() > wire::kMostStations) stations.resize(wire::kMostStations);
  while (roster_body({0, false, stations}).size() > kMostRosterBytes) stations.pop_back();
  proposed_ = std::move(stations);
}

bool RosterChange::rest(bool resting) {
  const StationSet* const latest = table_.latest();
  const bool agreed = latest != nullptr && latest->version == roster_.version &&
                      stage_ == Stage::kIdle && !changes_something(roster_.stations);
  if (!agreed || proposed_ || !g_.leaving.all_here) return false;
  rests_ = resting;
  proposed_ = roster_.stations;
  return true;
}

void RosterChange::drive(Nanos now) {
  if (at_top() && proposed_ && !g_.switching() && g_.leaving.all_here) {
    propose_to_all(*std::exchange(proposed_, std::nullopt), now);
  }
  if (stage_ == Stage::kTesting) test(now);
  part_unused();
}

void RosterChange::propose_to_all(std::vector<wire::StationEntry> stations, Nanos now) {
  given_up_ = given_up_ || stage_ == Stage::kTesting;
  stage_ = Stage::kIdle;
  parting_ = true;
  const bool others = changes_something(stations);
  if (others) rests_ = false;
  const StationSet* const latest = table_.latest();
  if (others || (latest != nullptr && rests_ != latest->resting)) {
    begin({roster_.version + 1, rests_, std::move(stations)}, now);
  } else {
    settle();
  }
}

void RosterChange::stop() {
  cutover_.give_up();
  stage_ = Stage::kIdle;
  until_ = kNever;
  parting_ = true;
}

// Whether the stations in force would change, or one of them is out.
bool RosterChange::changes_something(const std::vector<wire::StationEntry>& stations) const {
  const StationSet* const latest = table_.latest();
  if (latest == nullptr) return true;
  const auto in_force = [&](const wire::StationEntry& entry) {
    const auto known = known_.find(entry.uid);
    const Station* const s = known == known_.end() ? nullptr : latest->find(known->second.member);
    return s != nullptr && !s->out && s->capacity == entry.capacity;
  };
  return stations.size() != latest->stations.size() ||
         !std::all_of(stations.begin(), stations.end(), in_force);
}

void RosterChange::begin(wire::StationRoster roster, Nanos now) {
  roster_ = std::move(roster);
  given_up_ = false;
  g_.send_to_children(wire::FrameType::kRoster, 0, 0, roster_body(roster_));
  members_.clear();
  for (const wire::StationEntry& entry : roster_.stations) meet(entry);
  connected_.assign(roster_.stations.size(), true);
  children_.assign(g_.tree.children(g_.self), false);
  parting_ = true;
  stage_ = Stage::kTesting;
  tested_ = false;
  until_ = now + patience();
  if (!roster_.stations.empty()) return;
  // No station is to be tried. If stations are in force, a cut-over ends their use.
  const bool none = table_.latest() == nullptr;
  stage_ = none ? Stage::kIdle : Stage::kTested;
  if (none) settle();
}

// A number is given once and never reused, so that all ranks, which receive the same rosters, give
// the same numbers, whenever each of them parts from a station.
void RosterChange::meet(const wire::StationEntry& entry) {
  const auto number = static_cast<Member>(std::min<size_t>(g_.size + known_.size(), kNoMember));
  const auto [at, is_new] = known_.try_emplace(
      entry.uid, Known{number, entry.host + ":" + std::to_string(entry.port), false});
  Known& station = at->second;
  members_.push_back(station.member);
  // After the last number, tens of thousands of restarts later, no new station is met.
  if (station.member == kNoMember || std::exchange(station.met, true)) return;
  table_.meet(station.member);
  g_.port.meet(station.member, {entry.uid, entry.host, entry.port, entry.key, true});
  g_.counters.add(Counter::pings_sent);
  g_.send_frame(station.member, Channel::kControl, wire::FrameType::kPing, g_.ops.base(), 0);
}

// Checks whether every station has replied or failed, and reports it once all children have
// reported.
void RosterChange::test(Nanos now) {
  if (!tested_) {
    for (const Member m : members_) {
      const StationTable::Contact* const contact = table_.contact(m);
      const bool open = contact != nullptr && contact->down.ok() && !contact->answered;
      if (open && now < until_) return;
    }
    tested_ = true;
    lose_unreached();
  }
  if (std::find(children_.begin(), children_.end(), false) == children_.end()) {
    subtree_tested();
  }
}

// Loses the stations of the latest roster that this rank does not reach.
void RosterChange::lose_unreached() {
  for (const Member m : members_) {
    const StationTable::Contact* const contact = table_.contact(m);
    if (contact != nullptr && contact->down.ok() && contact->answered) continue;
    const std::string why = contact == nullptr   ? "its address is unknown"
                            : contact->down.ok() ? "no answer for " + seconds_text(patience())
                                                 : contact->down.message();
    stations_.lose(roster_.version, m,
                   "rank " + std::to_string(g_.self) + " cannot reach the station at " +
                       address_of(m) + ": " + why);
  }
}

void RosterChange::subtree_tested() {
  stage_ = Stage::kTested;
  if (at_top()) return;
  wire::Writer body;
  wire::put_roster_reach(
      body, {roster_.version, connected_, std::vector<bool>(connected_.size(), false)});
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kRosterReach, 0, 0,
                body.bytes());
}

void RosterChange::begin_cutover(Nanos now) {
  lose_unreached();
  if (std::find(connected_.begin(), connected_.end(), false) != connected_.end()) {
    std::vector<wire::StationEntry> reached;
    for (size_t i = 0; i < connected_.size(); i++) {
      if (connected_[i]) reached.push_back(roster_.stations[i]);
    }
    stage_ = Stage::kIdle;
    parting_ = true;
    if (!changes_something(reached)) return settle();
    begin({roster_.version + 1, rests_ = false, std::move(reached)}, now);
    if (stage_ != Stage::kTested) return;  // else no station is left to be tried
  }
  const std::vector<std::byte> version = version_body(roster_.version);
  if (const auto first = cutover_.stop(0, version, version)) in_force(*first, now);
}

// The cut-over is set. The stations receive this frame before any other of this version, because
// their folds depend on it.
void RosterChange::in_force(Sequence from, Nanos now) {
  StationSet set{roster_.version, from, roster_.resting, {}};
  const std::vector<uint64_t> hashes = wire::station_hashes(roster_);
  for (size_t i = 0; i < members_.size(); i++) {
    const wire::StationEntry& entry = roster_.stations[i];
    set.stations.push_back({members_[i], entry.capacity, hashes[i], entry.rack, false});
  }
  const bool others = changes_something(roster_.stations);
  table_.install(std::move(set));
  stations_.on_roster(others, now);
  table_.released(g_.ops.base());
  g_.counters.add(Counter::roster_changes);
  stage_ = Stage::kIdle;
  parting_ = true;
  const std::vector<std::byte> body = roster_body(roster_);
  for (const Member m : members_) {
    g_.send_frame(m, Channel::kReduce, wire::FrameType::kRoster, from, 0, body);
  }
  settle();
}

std::string RosterChange::address_of(Member station) const {
  for (const auto& [uid, known] : known_) {
    if (known.member == station) return known.address;
  }
  return "?";
}

void RosterChange::settle() {
  if (events_.settled) events_.settled(uids_in_force());
}

std::vector<uint64_t> RosterChange::uids_in_force() const {
  std::vector<uint64_t> uids;
  const StationSet* const latest = table_.latest();
  for (const auto& [uid, known] : known_) {
    if (latest != nullptr && latest->find(known.member) != nullptr) uids.push_back(uid);
  }
  return uids;
}

// Parts from stations that are neither in force nor being tried, once no operation is dealt to
// them.
void RosterChange::part_unused() {
  const StationSet* const latest = table_.latest();
  if (!parting_ || (latest != nullptr && g_.ops.base() < latest->from)) return;
  parting_ = false;
  for (auto& [uid, station] : known_) {
    const bool tried = stage_ != Stage::kIdle && std::find(members_.begin(), members_.end(),
                                                           station.member) != members_.end();
    const bool used = latest != nullptr && latest->find(station.member) != nullptr;
    if (tried || used || !std::exchange(station.met, false)) continue;
    table_.part(station.member);
    g_.port.part(station.member);
    if (at_top() && events_.parted) events_.parted(uid);
  }
}

void RosterChange::on_lost(uint32_t version, Member station, const std::string& why) {
  for (size_t i = 0; version == roster_.version && i < members_.size(); i++) {
    if (members_[i] == station) connected_[i] = false;
  }
  if (!at_top() || !events_.lost) return;
  for (const auto& [uid, known] : known_) {
    if (known.member == station) events_.lost(uid, why);
  }
}

void RosterChange::on_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  if (!g_.leaving.all_here) return g_.counters.add(Counter::stale);
  if (header.type == FrameType::kRoster) return on_roster(header, body, now);
  if (header.type == FrameType::kRosterReach) return on_reach(header, body, now);
  if (!is_current(body)) return;
  if (header.type == FrameType::kRosterStop) return on_stop(header, body, now);
  const auto first =
      header.type == FrameType::kRosterAt ? cutover_.on_at(header) : cutover_.on_ready(header);
  if (first) in_force(*first, now);
}

bool RosterChange::is_current(ConstBytes body) {
  uint32_t version = 0;
  if (wire::parse_roster_version(body, version) && version == roster_.version &&
      stage_ == Stage::kTested) {
    return true;
  }
  g_.counters.add(Counter::malformed);
  return false;
}

void RosterChange::on_roster(const Frame& header, ConstBytes body, Nanos now) {
  wire::StationRoster roster;
  if (!g_.from_parent(header.member) || !wire::parse_roster(body, roster) ||
      roster.version <= roster_.version || cutover_.is_pending()) {
    g_.counters.add(Counter::malformed);
    return;
  }
  begin(std::move(roster), now);
}

void RosterChange::on_reach(const Frame& header, ConstBytes body, Nanos now) {
  wire::RosterReach reach;
  if (!g_.tree.is_child(header.member, g_.self) || !wire::parse_roster_reach(body, reach) ||
      reach.version > roster_.version) {
    g_.counters.add(Counter::malformed);
    return;
  }
  // It is about a roster that the top has dropped meanwhile.
  if (reach.version < roster_.version || given_up_) return g_.counters.add(Counter::stale);
  const uint32_t child = g_.tree.child_index(header.member);
  if (reach.connected.size() != connected_.size() || stage_ != Stage::kTesting ||
      children_[child]) {
    g_.counters.add(Counter::malformed);
    return;
  }
  children_[child] = true;
  for (size_t i = 0; i < connected_.size(); i++) {
    if (!reach.connected[i]) connected_[i] = false;
  }
  test(now);
}

void RosterChange::on_stop(const Frame& header, ConstBytes body, Nanos now) {
  if (!g_.from_parent(header.member) || g_.switching()) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (const auto first = cutover_.stop(0, body, body)) in_force(*first, now);
}

}  // namespace mcast
