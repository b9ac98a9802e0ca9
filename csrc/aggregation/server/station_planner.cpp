// Ranks send a roster before they open an operation that uses it, each on the stream of the
// operation, so an unknown version is an old one that was dropped: the ranks fold it themselves.
#include "aggregation/server/station_planner.h"

#include <algorithm>

#include "aggregation/fold/station.h"

namespace mcast::service {

Status StationPlanner::learn(const wire::StationRoster& roster) {
  const auto at = std::find_if(known_.begin(), known_.end(),
                               [&](const Known& k) { return k.roster.version >= roster.version; });
  const bool known = at != known_.end() && at->roster.version == roster.version;
  if (known && at->roster.stations == roster.stations) return {};
  const std::string version = "roster " + std::to_string(roster.version);
  if (known) return Status(Code::kMismatch, version + " differs from the one that a rank has sent");
  const auto self =
      std::find_if(roster.stations.begin(), roster.stations.end(),
                   [this](const wire::StationEntry& station) { return station.uid == uid_; });
  if (self == roster.stations.end()) {
    return Status(Code::kMismatch, version + " does not name this station");
  }
  std::vector<Member> members;
  for (const wire::StationEntry& station : roster.stations) {
    const auto next = static_cast<Member>(ask_.uids.size() + members_.size());
    members.push_back(members_.try_emplace(station.uid, next).first->second);
  }
  if (members_.size() > aggregation::Station::kMostPartners) {
    return Status(Code::kResourceExhausted, version + " names too many new stations");
  }
  known_.insert(at, {roster, static_cast<size_t>(self - roster.stations.begin()), members});
  if (known_.size() > kVersions) known_.pop_front();
  return {};
}

Result<std::unique_ptr<const aggregation::WorkList>> StationPlanner::plan(
    uint32_t roster, const wire::Descriptor& descriptor, size_t room) const {
  for (const Known& known : known_) {
    if (known.roster.version == roster) {
      return deal_(ask_, known.roster, known.members, known.index, descriptor, room);
    }
  }
  return Status(Code::kUnavailable,
                "roster " + std::to_string(roster) + " is not known to the station");
}

}  // namespace mcast::service
