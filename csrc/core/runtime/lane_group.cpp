// The services of a lane to a group: sending, stations, receive statistics, and other groups that
// share the lane. The group's core calls all of this during a poll (lane.cpp).
#include <algorithm>
#include <utility>

#include "runtime/lane.h"

namespace mcast {
namespace {
// Time for which a group's probe also counts for new groups among its members, while it lives: half
// the time for which a switch keeps a membership without queries (260 s).
constexpr Nanos kProofAge = 130 * kSecond;
}  // namespace

LaneGroup::LaneGroup(Lane& lane, GroupParams params, const GroupAddress& address,
                     std::vector<PeerId> peers, std::shared_ptr<Counters> counters)
    : lane_(lane),
      number_(lane.turns_.made++),
      address_(address),
      peers_(std::move(peers)),
      counters_(std::move(counters)),
      core_(std::move(params), *this, *counters_) {
  lane_.others_.add(address_.hosts);
}

Bytes LaneGroup::lend(size_t size) {
  return lane_.transport_->datagram().lend(address_.multicast, size, address_.echo);
}
void LaneGroup::commit(size_t size) {
  lane_.sent(size, true);
  lane_.transport_->datagram().commit(size);
}

bool LaneGroup::has_share() {
  if (lane_.has_share()) return true;
  counters_->add(Counter::share_waits);
  return false;
}

size_t LaneGroup::gather_from() const { return lane_.transport_->datagram().gather_from(); }
bool LaneGroup::commit_gather(size_t header, const Slice& block, size_t offset, size_t length) {
  if (!lane_.transport_->datagram().commit_gather(header, block, offset, length)) return false;
  lane_.sent(header + length, true);
  return true;
}

// A device that places chunks checks the header only, and memory that it exposes is in clear.
Placer* LaneGroup::placer() {
  return core_.params().multicast.guard == nullptr ? lane_.transport_->datagram().placer()
                                                   : nullptr;
}

void LaneGroup::send(Member to, Channel channel, std::span<const ConstBytes> parts) {
  const PeerId to_peer = peer(to);
  if (to_peer == kNoPeer) return;
  size_t bytes = 0;
  for (const ConstBytes& part : parts) bytes += part.size();
  lane_.sent(bytes, false);
  lane_.transport_->stream().send(to_peer, channel, parts);
}

size_t LaneGroup::queued(Member to, Channel channel) const {
  const PeerId to_peer = peer(to);
  if (channel != Channel::kControl && !lane_.has_share()) {
    counters_->add(Counter::share_waits);
    return SIZE_MAX;
  }
  return to_peer == kNoPeer ? 0 : lane_.transport_->stream().queued(to_peer, channel);
}

PeerId LaneGroup::peer(Member member) const {
  if (member < peers_.size()) return peers_[member];
  const auto at = stations_.find(member);
  return at == stations_.end() ? kNoPeer : at->second;
}

Member LaneGroup::member_of(PeerId peer) const {
  for (size_t m = 0; m < peers_.size(); m++) {
    if (peers_[m] == peer) return static_cast<Member>(m);
  }
  return station_of(peer);
}

Member LaneGroup::station_of(PeerId peer) const {
  for (const auto& [station, its] : stations_) {
    if (its == peer) return station;
  }
  return kNoMember;
}

void LaneGroup::meet(Member station, const StreamAddress& address) {
  const MayReach& may_reach = lane_.accounts_.may_reach;
  if (const Status may = may_reach ? may_reach(address.host, address.port) : Status(); !may.ok()) {
    out_of_reach_[station] = may;
    return met_down_.push_back(station);
  }
  const PeerId peer = lane_.transport_->stream().add_peer(address);
  stations_[station] = peer;
  lane_.station_peers_.insert(peer);
  const std::vector<IpAddress> its = lane_.transport_->datagram().sources_of(address);
  lane_.others_.add(its);
  address_.hosts.insert(address_.hosts.end(), its.begin(), its.end());
  // The core is the caller; it is notified in the next poll.
  if (lane_.down_.count(peer) > 0) met_down_.push_back(station);
}

void LaneGroup::tell_met_down() {
  for (const Member station : std::exchange(met_down_, {})) {
    if (auto far = out_of_reach_.extract(station); !far.empty()) {
      core_.on_peer_down(station, far.mapped(), false, lane_.now_);
      continue;
    }
    const auto it = lane_.down_.find(peer(station));
    if (it == lane_.down_.end()) continue;
    core_.on_peer_down(station, it->second.why, it->second.graceful, lane_.now_);
  }
}

void LaneGroup::part(Member station) {
  stations_.erase(station);
  out_of_reach_.erase(station);
}

std::optional<RemoteGrant> LaneGroup::expose(const Slice& block, size_t offset) {
  RemoteMemory* const remote = lane_.transport_->stream().remote_memory();
  if (remote == nullptr || block.region == nullptr || core_.params().multicast.guard != nullptr) {
    return std::nullopt;
  }
  auto grant = remote->expose(block, offset);
  if (!grant.ok()) return std::nullopt;  // too little locked memory: repairs use messages
  return std::move(grant).value();
}

void LaneGroup::linger(std::shared_ptr<void> hold) {
  lane_.grants_.push_back({std::move(hold), lane_.now_ + core_.params().liveness_limit});
}

Port::Received LaneGroup::received() const {
  auto& seen = lane_.seen_;
  // Traffic of other groups over these hosts is not a flood, nor are late datagrams for closed
  // groups.
  const uint64_t others = seen.neighbour + seen.late;
  const uint64_t useless = seen.all - seen.own - seen.verified - others;
  const uint64_t ignored = seen.ignored.count(lane_.transport_->datagram(), lane_.now_);
  return {seen.verified, useless, seen.foreign - others, ignored};
}

Status LaneGroup::receive_multicast(bool wanted) {
  if (wanted == address_.joined) return {};
  Datagram& medium = lane_.transport_->datagram();
  if (wanted) {
    const Status status = medium.join(address_.multicast);
    address_.joined = status.ok();
    return status;
  }
  address_.joined = false;
  medium.leave(address_.multicast);
  // As long as other groups stay, the flood continues, at every port, because the host is then
  // still a member of the address. Their cores are notified in the next poll.
  const MulticastAddress& left = address();
  for (const auto& [tag, group] : lane_.groups_) {
    const MulticastAddress& its = group->address();
    if (!group->address_.joined || its.group != left.group || its.loopback != left.loopback)
      continue;
    group->flooded_ = true;
    lane_.turns_.wake(*group);
  }
  return {};
}

size_t LaneGroup::max_read() const {
  RemoteMemory* const remote = lane_.transport_->stream().remote_memory();
  return remote == nullptr ? 0 : remote->max_read();
}

bool LaneGroup::read(Member from, uint64_t address, uint32_t key, size_t length, uint32_t token) {
  RemoteMemory* const remote = lane_.transport_->stream().remote_memory();
  const uint64_t id = lane_.next_reader_;
  if (remote == nullptr || !remote->read(peers_[from], address, key, length, id)) return false;
  lane_.next_reader_++;
  lane_.readers_[id] = {core_.params().tag, token};
  return true;
}

uint32_t LaneGroup::busy_groups() const { return std::max(1u, lane_.turns_.busy); }

bool LaneGroup::reach_known(Nanos now) const {
  std::vector<PeerId> mine = peers_;
  std::sort(mine.begin(), mine.end());
  const auto proves = [&](const auto& entry) {
    const LaneGroup& g = *entry.second;
    return !g.proven_.empty() && now - g.proven_at_ < kProofAge &&
           g.address().loopback == address().loopback &&
           g.core_.params().agreed.chunk >= core_.params().agreed.chunk &&
           std::includes(g.proven_.begin(), g.proven_.end(), mine.begin(), mine.end());
  };
  return std::any_of(lane_.groups_.begin(), lane_.groups_.end(), proves);
}

void LaneGroup::reach_proven(Nanos now) {
  proven_ = peers_;
  std::sort(proven_.begin(), proven_.end());
  proven_at_ = now;
}

void LaneGroup::reach_lost() {
  for (const auto& [tag, group] : lane_.groups_) group->proven_.clear();
}

}  // namespace mcast
