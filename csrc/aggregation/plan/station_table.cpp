// Only a few sets are kept: the latest, and earlier ones that operations in flight were dealt by. A
// loss may be reported before the cut-over that installs its set: it is kept until then.
#include "aggregation/plan/station_table.h"

#include <algorithm>
#include <utility>

namespace mcast {

const StationSet* StationTable::of(Sequence sequence) const {
  const auto after = std::find_if(sets_.rbegin(), sets_.rend(),
                                  [&](const StationSet& s) { return s.from <= sequence; });
  return after == sets_.rend() ? nullptr : &*after;
}

bool StationTable::install(StationSet set) {
  if (const StationSet* const last = latest();
      last != nullptr && (set.version <= last->version || set.from < last->from)) {
    return false;
  }
  for (Station& s : set.stations) {
    s.out = s.out ||
            std::find(early_.begin(), early_.end(), Loss{set.version, s.member}) != early_.end();
  }
  const auto known = [&](const Loss& l) { return l.version <= set.version; };
  early_.erase(std::remove_if(early_.begin(), early_.end(), known), early_.end());
  sets_.push_back(std::move(set));
  return true;
}

bool StationTable::lose(uint32_t version, Member station) {
  if (sets_.empty() || version > sets_.back().version) {
    const Loss loss{version, station};
    if (std::find(early_.begin(), early_.end(), loss) != early_.end()) return false;
    early_.push_back(loss);
    if (early_.size() > kMostEarly) early_.pop_front();
    return true;
  }
  for (StationSet& set : sets_) {
    if (set.version != version) continue;
    for (Station& s : set.stations) {
      if (s.member == station) return !std::exchange(s.out, true);
    }
  }
  return false;
}

std::vector<uint32_t> StationTable::versions_with(Member station) const {
  std::vector<uint32_t> versions;
  for (const StationSet& set : sets_) {
    const Station* const s = set.find(station);
    if (s != nullptr && !s->out) versions.push_back(set.version);
  }
  return versions;
}

void StationTable::released(Sequence base) {
  while (sets_.size() > 1 && sets_[1].from <= base) sets_.pop_front();
}

const StationTable::Contact* StationTable::contact(Member station) const {
  const auto at = contacts_.find(station);
  return at == contacts_.end() ? nullptr : &at->second;
}

void StationTable::heard(Member station, Nanos now) {
  const auto at = contacts_.find(station);
  if (at == contacts_.end()) return;
  at->second.answered = true;
  at->second.heard = now;
}

bool StationTable::down(Member station, const Status& why) {
  const auto at = contacts_.find(station);
  if (at == contacts_.end() || !at->second.down.ok()) return false;
  at->second.down = why;
  return true;
}

}  // namespace mcast
