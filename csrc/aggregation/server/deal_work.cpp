// Puts the fields of the ask and of the roster into the form that ranks use
// (aggregation/plan/station_deal.h): the same numbers make the same deal.
#include "aggregation/server/deal_work.h"

#include "aggregation/fold/station_list.h"
#include "wire/station_hash.h"

namespace mcast::service {
namespace {

std::vector<Station> stations_of(const wire::StationRoster& roster,
                                 std::span<const Member> members) {
  const std::vector<uint64_t> hashes = wire::station_hashes(roster);
  std::vector<Station> stations(roster.stations.size());
  for (size_t i = 0; i < stations.size(); i++) {
    stations[i].member = members[i];
    stations[i].capacity = roster.stations[i].capacity;
    stations[i].hash = hashes[i];
    stations[i].rack = roster.stations[i].rack;
  }
  return stations;
}

}  // namespace

Agreed agreed_of(const wire::Ask& ask) {
  const Hosts hosts(ask.host_of);
  Agreed agreed;
  agreed.members = hosts.members();
  agreed.contributors = hosts.count();
  agreed.chunk = ask.chunk;
  agreed.incast = ask.incast;
  agreed.fold = fold_order(ask.fold);
  agreed.aggregate = aggregate_mode(ask.aggregate);
  if (!ask.racks.empty()) {
    std::vector<std::string> names;
    for (const uint32_t rack : ask.rack_of) names.push_back(rack == 0 ? "" : ask.racks[rack - 1]);
    agreed.racks = racks_of_hosts(hosts, names);
  }
  return agreed;
}

DealWork deal_work() {
  return
      [](const wire::Ask& ask, const wire::StationRoster& roster, std::span<const Member> members,
         size_t index, const wire::Descriptor& descriptor, size_t room) {
        return make_station_list(descriptor, agreed_of(ask), ask.tag, stations_of(roster, members),
                                 static_cast<uint16_t>(index), room);
      };
}

}  // namespace mcast::service
