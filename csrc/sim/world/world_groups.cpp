// Makes the groups of a world as runtime/bootstrap.cpp does, without the store: all records exist
// immediately, one roster is concluded from them, and each member agrees by it and probes without
// waiting for the others. When all members know the outcome, the parts are made in the same way,
// and then each member gets its split.
#include <algorithm>
#include <utility>

#include "aggregation/member/station_requests.h"
#include "aggregation/member/stations.h"
#include "base/version.h"
#include "runtime/rails.h"
#include "runtime/store_round.h"
#include "runtime/subgroups.h"
#include "sim/world/world.h"
#include "wire/protocol_version.h"

namespace mcast::sim {

namespace {

// The rule of Bootstrap::network_reason() for ranks of one host.
bool shares_memory(const Config& c) { return c.shared_memory != "off"; }
bool may_leave_network(const Config& c) {
  return shares_memory(c) && c.transport == "auto" && c.algorithm == "auto";
}

// The rule of Bootstrap::takes_stations().
bool takes_stations(const Config& c, bool part, uint32_t hosts) {
  return !part && hosts > 1 && !c.aggregators.empty() && c.aggregate != "off";
}

// Delay between two threads of one rank.
Nanos delay(Rng& rng, Nanos most) {
  return static_cast<Nanos>(rng.below(static_cast<uint64_t>(most) + 1));
}

}  // namespace

RankRecord World::record_of(uint32_t rank, const Making& how) {
  RankRecord record;
  record.version = version();
  record.protocol = kProtocolVersion;
  record.host = "simulated host " + std::to_string(host_of(rank));
  record.host_name = record.host;
  record.random = mix64(spec_.seed + groups_.size());
  record.salt = std::to_string(spec_.seed);
  record.agreed = how.config.agreed_text();
  record.place.rack = how.config.rack;
  const auto& lanes = lanes_of(rank, how.lane);
  describe_lanes({lanes.multicast, lanes.reduce}, record);
  security_.describe(rank, record);
  return record;
}

World::GroupId World::make_group() {
  std::vector<uint32_t> all(ranks_.size());
  for (uint32_t r = 0; r < all.size(); r++) all[r] = r;
  return make_group(all);
}

World::GroupId World::make_group(const std::vector<uint32_t>& ranks, const Config* config,
                                 Ready ready, std::vector<Member> absent) {
  Making how;
  how.name = "g" + std::to_string(groups_.size());
  how.ranks = ranks;
  how.absent = std::move(absent);
  how.config = config != nullptr ? *config : spec_.config;
  if (how.config.aggregators.empty()) how.config.aggregators = aggregators_.addresses();
  how.ready = std::move(ready);
  return begin(std::move(how));
}

World::GroupId World::begin(Making how) {
  const GroupId g = groups_.size();
  std::vector<RankRecord> records;
  for (const uint32_t r : how.ranks) records.push_back(record_of(r, how));
  const Status same = security_.agree(records, how.config);
  const Result<Roster> roster = same.ok() ? conclude(records, how.part_index) : same;
  Members& made = groups_.emplace_back();
  made.how = std::move(how);
  made.members.resize(made.how.ranks.size());
  made.waiting = static_cast<uint32_t>(made.members.size());
  uint32_t hosts = 0;
  for (size_t m = 0; m < made.members.size(); m++) {
    made.members[m].rank = made.how.ranks[m];
    if (roster.ok()) {
      made.host_of.push_back(roster->ranks[m].host);
      hosts = std::max(hosts, made.host_of[m] + 1);
    }
  }
  const Config& c = made.how.config;
  made.host_reads = hosts > 1 && hosts < made.members.size() && shares_memory(c) && !made.how.whole;
  made.rails = made.host_reads && Hosts(made.host_of).even();
  made.in_parts = made.rails || (hosts > 1 && c.subgroups > 1 && !made.how.whole);
  if (hosts == 1 && made.members.size() > 1 && may_leave_network(c)) {
    open_on_host(g);
    return g;
  }
  for (Member m = 0; m < made.members.size(); m++) {
    if (killed(made.members[m].rank)) {
      settle(g, m, Status(Code::kClosed, "its process has ended"));
    } else if (std::count(made.how.absent.begin(), made.how.absent.end(), m) > 0) {
      settle(g, m, Status(Code::kClosed, "its program has not made the group"));
    } else if (roster.ok()) {
      open(g, m, *roster);
    } else {
      settle(g, m, roster.status());
    }
  }
  return g;
}

GroupSpec World::spec_of(GroupId g, Member m) const {
  const Making& how = groups_[g].how;
  const uint32_t rank = groups_[g].members[m].rank;
  GroupSpec spec;
  spec.name = how.name;
  spec.rank = m;
  spec.size = size(g);
  spec.config = how.config;
  spec.part = how.whole.has_value();
  spec.part_index = how.part_index;
  spec.link_sharers = how.link_sharers;
  spec.lane = how.lane;
  spec.clock = [this, rank] { return ranks_[rank].clock.at(now()); };
  return spec;
}

void World::open_on_host(GroupId g) {
  const auto segment = std::make_shared<SimSegment>(groups_[g].how.ranks);
  Surroundings& here = *this;
  for (Member m = 0; m < size(g); m++) {
    GroupMember& member = groups_[g].members[m];
    auto group = std::make_shared<SimHostGroup>(spec_of(g, m), here, segment);
    member.on_host = group.get();
    member.group = std::move(group);
    at(now() + delay(rng_, spec_.costs.command), [this, g, m] { settle(g, m, {}); });
  }
}

void World::open(GroupId g, Member m, const Roster& roster) {
  GroupMember& member = groups_[g].members[m];
  const Making& how = groups_[g].how;
  const auto& lanes = lanes_of(member.rank, how.lane);
  const Driving driving(meter_, member.rank);
  NetworkGroupParts parts;
  parts.lanes = {lanes.multicast, lanes.reduce};
  parts.transport_reason = "simulated";
  parts.arrived = ranks_[member.rank].arrived;
  if (groups_[g].host_reads) {
    parts.read_host.read = [this, g](Member from, uint64_t address, std::byte* to, size_t length) {
      return !killed(rank(g, from)) && memory_.read(address, to, length).ok();
    };
  }
  Agreement agreement = agreement_of(roster, m, how.config, how.link_sharers);
  const PerLane<size_t> endpoints{lanes.multicast->endpoint().index(),
                                  lanes.reduce->endpoint().index()};
  const auto secret = security_.guard(member.rank, spec_of(g, m), roster, endpoints, parts);
  parts.make_fold = &Stations::make;
  const bool stations = takes_stations(how.config, how.whole.has_value(), agreement.hosts);
  if (stations) {
    const Driving nobody(meter_);
    Registrar& registrar = aggregators_.registrar_of(member.rank, host_of(member.rank),
                                                     ranks_[member.rank].clock, spec_.costs);
    member.fold = std::make_shared<StationRequests>(registrar, spec_of(g, m), agreement,
                                                    lanes.reduce, secret, groups_[g].host_reads);
    parts.fold = member.fold;
  }
  auto group = std::make_shared<NetworkGroup>(spec_of(g, m), std::move(parts));
  member.on_network = group.get();
  member.group = group;
  const bool begun = group->begin_open(agreement, [this, g, m](const Status& status) {
    at(now() + delay(rng_, spec_.costs.command), [this, g, m, status] { settle(g, m, status); });
  });
  agreement.peers = decltype(agreement.peers)();
  if (!stations || m != kConcluder) agreement.reduce_peers = decltype(agreement.reduce_peers)();
  member.agreement = std::move(agreement);
  if (!begun) settle(g, m, Status(Code::kClosed, "its process has ended"));
}

void World::settle(GroupId g, Member m, const Status& probed) {
  GroupMember& member = groups_[g].members[m];
  if (member.ready) return;
  member.making = probed;
  if (probed.ok() && member.on_network != nullptr && !member.asked) {
    member.on_network->settle(member.agreement);
    if (member.fold) {
      member.asked = true;
      const auto on = [this, g, m](Nanos later) {
        at(now() + later, [this, g, m] { settle(g, m, {}); });
      };
      member.fold->begin(member.agreement, [this, on] { on(delay(rng_, spec_.costs.command)); });
      return on(kFirstRoster);
    }
  }
  member.ready = true;
  // A member without a group does not wait for parts.
  const bool known = !groups_[g].in_parts || !probed.ok();
  if (const Ready& ready = groups_[g].how.ready; ready && known) ready(m);
  groups_[g].members[m].told = known;
  if (--groups_[g].waiting == 0) settled(g);
}

// All live members know the outcome: makes the parts. The whole group waits for all of them.
void World::settled(GroupId g) {
  const bool good = std::all_of(groups_[g].members.begin(), groups_[g].members.end(),
                                [&](const auto& m) { return m.making.ok() && !killed(m.rank); });
  if (good && groups_[g].in_parts) {
    begin_parts(g);
  } else if (groups_[g].in_parts) {
    whole_ready(g);
  }
  if (groups_[g].how.whole && groups_[g].parts_waiting == 0) part_made(*groups_[g].how.whole);
}

void World::begin_parts(GroupId g) {
  const Members& group = groups_[g];
  if (group.rails) return lay_rails(g);
  const auto count = static_cast<uint32_t>(group.how.config.subgroups);
  groups_[g].parts_waiting = count;
  for (uint32_t i = 1; i <= count; i++) {
    Making part = groups_[g].how;
    part.name += "/sub " + std::to_string(i - 1);
    part.part_index = part.lane = i;
    part.link_sharers = count;
    part.whole = g;
    part.ready = {};
    const GroupId made = begin(std::move(part));
    groups_[g].parts.push_back(made);
  }
}

// Rails first, then the host groups.
void World::lay_rails(GroupId g) {
  const Hosts hosts(groups_[g].host_of);
  const auto rails = static_cast<uint32_t>(hosts.members(0).size());
  std::vector<Making> parts;
  for (uint32_t k = 0; k < rails; k++) {
    Making rail = groups_[g].how;
    rail.name += "/rail " + std::to_string(k);
    rail.part_index = k + 1;
    rail.link_sharers = rails;
    rail.ranks.clear();
    for (uint32_t h = 0; h < hosts.count(); h++) rail.ranks.push_back(rank(g, hosts.members(h)[k]));
    parts.push_back(std::move(rail));
  }
  for (uint32_t h = 0; h < hosts.count(); h++) {
    Making host = groups_[g].how;
    host.name += "/host " + std::to_string(h);
    host.config.transport = host.config.algorithm = "auto";
    host.ranks.clear();
    for (const Member m : hosts.members(h)) host.ranks.push_back(rank(g, m));
    parts.push_back(std::move(host));
  }
  groups_[g].parts_waiting = static_cast<uint32_t>(parts.size());
  for (Making& part : parts) {
    part.whole = g;
    part.ready = {};
    const GroupId made = begin(std::move(part));
    groups_[g].parts.push_back(made);
  }
}

void World::part_made(GroupId g) {
  Members& group = groups_[g];
  if (group.parts_waiting == 0 || --group.parts_waiting > 0) return;
  for (const GroupId part : group.parts) {
    for (const GroupMember& member : groups_[part].members) {
      if (member.making.ok() && !killed(member.rank)) continue;
      // As in the product, a group is not made if one of its parts was not.
      for (GroupMember& whole : group.members) {
        if (whole.making.ok()) whole.making = Status(Code::kUnavailable, "a part was not made");
      }
      return whole_ready(g);
    }
  }
  for (Member m = 0; m < size(g); m++) group.members[m].on_network->split(split_of(g, m));
  whole_ready(g);
}

void World::whole_ready(GroupId g) {
  const Ready ready = groups_[g].how.ready;
  for (Member m = 0; ready && m < size(g); m++) {
    if (!killed(rank(g, m)) && !std::exchange(groups_[g].members[m].told, true)) ready(m);
  }
}

std::unique_ptr<Split> World::split_of(GroupId g, Member m) const {
  const Members& group = groups_[g];
  std::vector<std::shared_ptr<GroupBase>> mine;
  for (const GroupId part : group.parts) {
    for (const GroupMember& member : groups_[part].members) {
      if (member.rank == group.members[m].rank) mine.push_back(member.group);
    }
  }
  if (!group.rails) return std::make_unique<Subgroups>(std::move(mine));
  return std::make_unique<Rails>(Hosts(group.host_of), m, group.members[m].agreement.agreed,
                                 mine[0], mine[1]);
}

// ---- groups that are made ----

GroupCore* World::core(GroupId g, Member m, LaneId id) {
  const GroupMember& member = groups_[g].members[m];
  if (member.on_network == nullptr) return nullptr;
  LaneGroup* const group =
      lane(member.rank, id, groups_[g].how.lane).lane().find_group(member.agreement.tag);
  return group == nullptr ? nullptr : &group->core();
}

uint64_t World::total(GroupId g, Counter counter) const {
  uint64_t sum = 0;
  for (const GroupMember& member : groups_[g].members) {
    if (member.group) sum += member.group->count(counter);
  }
  for (const GroupId part : groups_[g].parts) sum += total(part, counter);
  return sum;
}

void World::take_staged_peaks(GroupId g, std::vector<uint64_t>* by_rank) {
  for (Member m = 0; m < size(g); m++) {
    for (const LaneId id : kBothLanes) {
      GroupCore* const of = core(g, m, id);
      if (of != nullptr) (*by_rank)[rank(g, m)] += of->take_staged_peak();
    }
  }
  for (const GroupId part : groups_[g].parts) take_staged_peaks(part, by_rank);
}

// Closes parts after the whole group, as an engine does at its end.
void World::close(GroupId g, Nanos limit) {
  for (Member m = 0; m < size(g); m++) {
    GroupMember& member = groups_[g].members[m];
    if (!member.group || killed(member.rank)) continue;
    member.closing = true;
    member.group->begin_close(limit, false, [this, g, m](const Status&) {
      if (g < groups_.size()) groups_[g].members[m].closing = false;
    });
  }
  for (const GroupId part : groups_[g].parts) close(part, limit);
}

void World::let_go() {
  for (Members& group : groups_) {
    for (GroupMember& member : group.members) {
      member.on_network = nullptr;
      member.on_host = nullptr;
      member.group.reset();
      member.agreement = {};
    }
  }
}

bool World::closed(GroupId g) const {
  return std::none_of(groups_[g].members.begin(), groups_[g].members.end(),
                      [&](const auto& m) { return m.closing && !killed(m.rank); }) &&
         std::all_of(groups_[g].parts.begin(), groups_[g].parts.end(),
                     [&](GroupId part) { return closed(part); });
}

}  // namespace mcast::sim
