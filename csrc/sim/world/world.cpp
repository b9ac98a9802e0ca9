// Ranks and lanes of a world, and its time (its groups: world_groups.cpp). Everything that happens
// is an event of the network's queue: traffic, turns of lanes, and actions.
#include "sim/world/world.h"

#include <algorithm>
#include <utility>

#include "wire/datagram.h"
#include "wire/guarded_datagram.h"

namespace mcast::sim {

TrafficClass class_of_datagram(ConstBytes datagram) {
  wire::DatagramHeader header;
  wire::GuardedHeader guarded;
  if (wire::parse_guarded(datagram, guarded) == wire::ParseError::kNone) {
    header = guarded.inner;
  } else if (wire::parse_datagram(datagram, header) != wire::ParseError::kNone) {
    return TrafficClass::kBackground;
  }
  return header.type == wire::DatagramType::kData       ? TrafficClass::kData
         : header.type == wire::DatagramType::kPosition ? TrafficClass::kPosition
                                                        : TrafficClass::kProbe;
}

namespace {

// The plane and the transmit queue of this lane on a host.
Place place_of(const WorldSpec& spec, LaneId id) {
  const uint32_t queues = spec.net.fabric ? spec.net.fabric->links.nic_queues : 1;
  const uint32_t planes = spec.net.fabric ? spec.net.fabric->links.topology.planes : 1;
  Place place;
  place.plane = static_cast<uint16_t>(static_cast<uint32_t>(index_of(id)) % planes);
  place.queue = static_cast<uint32_t>(index_of(id)) % queues;
  return place;
}

// Guarded datagrams are longer; chunks keep their size.
SimOptions with_room(SimOptions net, const SimSecurity& security) {
  net.max_datagram += security.extra();
  return net;
}

}  // namespace

World::World(WorldSpec spec)
    : spec_(std::move(spec)),
      security_(spec_.config, spec_.seed, spec_.guarding),
      network_(with_room(spec_.net, security_)),
      rng_(mix64(spec_.seed)),
      aggregators_(network_, spec_.aggregators, mix64(spec_.seed + 0xa66),
                   place_of(spec_, LaneId::kReduce), security_) {
  network_.set_listener(this);
  network_.set_classifier(class_of_datagram);
  ranks_.resize(size_t{spec_.hosts} * spec_.ranks);
  for (uint32_t r = 0; r < ranks_.size(); r++) add_rank(r);
}

World::~World() {
  network_.end();
  for (Rank& rank : ranks_) {
    if (rank.killed) continue;
    for (const auto& lanes : rank.lanes) {
      for (const LaneId id : kBothLanes) lanes[id]->end();
    }
  }
  groups_.clear();
  ranks_.clear();
}

void World::add_rank(uint32_t r) {
  Rank& rank = ranks_[r];
  rank.clock = spec_.clock ? spec_.clock(r) : SimClock(0, 1);
  auto& lanes = rank.lanes.emplace_back();
  for (const LaneId id : kBothLanes) add_lane(r, id, lanes[id]);
}

// A lane has the number of its endpoint.
void World::add_lane(uint32_t r, LaneId id, std::shared_ptr<SimLane>& lane) {
  Place place = place_of(spec_, id);
  place.host = host_of(r);
  std::unique_ptr<SimTransport> endpoint = network_.attach(place);
  const size_t number = endpoint->index();
  if (security_.on()) endpoint->guard(security_.of_rank(r, number));
  LaneAccounts accounts;
  if (id == LaneId::kMulticast) accounts.arrived = ranks_[r].arrived;
  lane = std::make_shared<SimLane>(network_, static_cast<uint32_t>(number), ranks_[r].clock,
                                   spec_.costs_of ? spec_.costs_of(r) : spec_.costs,
                                   std::move(endpoint), std::move(accounts),
                                   mix64(spec_.seed + 0x1a4e * (number + 1)));
  lanes_.resize(number + 1);
  lanes_[number] = {lane.get(), r};
}

PerLane<std::shared_ptr<SimLane>>& World::lanes_of(uint32_t rank, uint32_t number) {
  auto& lanes = ranks_[rank].lanes;
  while (lanes.size() <= number) {
    auto& more = lanes.emplace_back();
    add_lane(rank, LaneId::kMulticast, more.multicast);
    more.reduce = lanes[0].reduce;
  }
  return lanes[number];
}

std::vector<size_t> World::endpoints(uint32_t rank) const {
  std::vector<size_t> mine;
  for (size_t number = 0; number < lanes_.size(); number++) {
    if (lanes_[number].lane != nullptr && lanes_[number].rank == rank) mine.push_back(number);
  }
  return mine;
}

std::vector<SimLane*> World::lanes() const {
  std::vector<SimLane*> all;
  for (const LaneAt& at : lanes_) all.push_back(at.lane);
  return all;
}

void World::on_news(size_t endpoint) {
  if (endpoint < lanes_.size() && lanes_[endpoint].lane != nullptr) {
    lanes_[endpoint].lane->on_news();
  } else {
    (void)aggregators_.on_news(endpoint);
  }
}

void World::on_turn(uint32_t what) {
  const bool lane = what < lanes_.size() && lanes_[what].lane != nullptr;
  const Driving driving(meter_, lane ? lanes_[what].rank : HeapMeter::kNobody);
  const bool had = lane ? lanes_[what].lane->on_turn() : aggregators_.on_turn(what);
  if (had) turns_trace_.add(now(), 1, what, 0);
}

// ---- faults of processes ----

void World::pause(uint32_t rank, bool paused) {
  if (ranks_[rank].killed) return;
  ranks_[rank].paused = paused;
  for (const size_t number : endpoints(rank)) lanes_[number].lane->pause(paused);
  aggregators_.pause_rank(rank, paused);
  if (!paused) look_again(rank);
}

// Its peers receive the data that it has sent, then its goodbyes. Its registrar has no group left.
void World::exit(uint32_t rank) {
  if (std::exchange(ranks_[rank].killed, true)) return;
  ranks_[rank].exited = true;
  const Driving driving(meter_, rank);
  for (const size_t number : endpoints(rank)) {
    SimLane& lane = *lanes_[number].lane;
    lane.end();
    (void)lane.lane().transport().stream().close_peers(now());
  }
}

// Also kills a process that has ended, whose goodbyes may be stuck.
void World::kill(uint32_t rank) {
  const bool exited = std::exchange(ranks_[rank].exited, false);
  if (std::exchange(ranks_[rank].killed, true) && !exited) return;
  aggregators_.kill_rank(rank);
  for (const size_t number : endpoints(rank)) {
    lanes_[number].lane->kill();
    network_.kill(number);
  }
  for (GroupId g = 0; g < groups_.size(); g++) {
    for (GroupMember& member : groups_[g].members) {
      if (member.rank != rank) continue;
      if (member.on_host != nullptr) member.on_host->kill();
      if (!std::exchange(member.ready, true) && --groups_[g].waiting == 0) settled(g);
    }
  }
}

void World::jump(uint32_t rank, Nanos by) {
  ranks_[rank].clock.jump(by);
  look_again(rank);
}

void World::look_again(uint32_t rank) {
  for (const size_t number : endpoints(rank)) lanes_[number].lane->look_again();
  aggregators_.look_again(rank);
  for (const Members& group : groups_) {
    for (const GroupMember& member : group.members) {
      if (member.rank == rank && member.on_host != nullptr) member.on_host->look_again();
    }
  }
}

// ---- accounts ----

GuardTotals World::guard_totals() const {
  GuardTotals all;
  for (const auto& [lane, rank] : lanes_) {
    if (lane == nullptr || lane->endpoint().guarded() == nullptr) continue;
    all.add(lane->endpoint().guarded()->totals());
  }
  return all;
}

uint64_t World::trace_hash() const {
  return mix64(turns_trace_.value() ^ mix64(network_.fabric().trace().value()));
}

uint64_t World::most_spins() const {
  uint64_t most = 0;
  for (const auto& [lane, rank] : lanes_) {
    if (lane != nullptr) most = std::max(most, lane->most_spins());
  }
  return most;
}

}  // namespace mcast::sim
