// Rank 0 has its aggregators asked, and each rank's reduce lane agrees on the admitted stations.
// The creation waits a moment for the first roster (NetworkGroup), so that the first operations can
// use it.
#include "aggregation/member/station_requests.h"

#include <algorithm>
#include <utility>

#include "aggregation/member/stations.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/version.h"
#include "runtime/lane.h"
#include "wire/protocol_version.h"

namespace mcast {
namespace {

constexpr size_t kMostNameBytes = 256;  // of a group, accepted by aggregators

}  // namespace

StationRequests::StationRequests(Registrar& registrar, const GroupSpec& spec,
                                 const Agreement& agreement,
                                 const std::shared_ptr<LaneDriver>& reduce,
                                 std::shared_ptr<const crypto::JobSecret> secret, bool hosts_fold)
    : registrar_(registrar),
      tag_(agreement.tag),
      name_(spec.name),
      config_(spec.config),
      asks_(spec.rank == kConcluder),
      reduce_(reduce),
      secret_(std::move(secret)),
      hosts_fold_(hosts_fold) {}

void StationRequests::opened(GroupCore& core) {
  RosterEvents events;
  Registrar* const registrar = &registrar_;
  events.settled = [registrar, tag = tag_,
                    first = first_roster_](const std::vector<uint64_t>& uids) {
    registrar->settled(tag, uids);
    std::function<void()> told;
    {
      const std::lock_guard<std::mutex> lock(first->mutex);
      first->there = true;
      told = std::exchange(first->told, nullptr);
    }
    if (told) told();
  };
  events.lost = [registrar, tag = tag_](uint64_t uid, const std::string& why) {
    registrar->lost(tag, uid, why);
  };
  events.parted = [registrar, tag = tag_](uint64_t uid) { registrar->parted(tag, uid); };
  Stations::of(core.fold())->roster().set_listener(std::move(events));
}

void StationRequests::begin(const Agreement& agreement, std::function<void()> first) {
  {
    const std::lock_guard<std::mutex> lock(first_roster_->mutex);
    if (!first_roster_->there) first_roster_->told = std::exchange(first, nullptr);
  }
  if (first) first();
  if (asks_) ask(agreement);
}

void StationRequests::ask(const Agreement& agreement) {
  Registrar::Job job;
  Result<std::vector<NetAddress>> addresses =
      parse_net_addresses(config_.aggregators, kMostAggregators);
  if (!addresses.ok()) return;  // the setting was checked before
  job.aggregators = std::move(addresses).value();
  wire::Ask& ask = job.ask;
  ask.version = version();
  ask.protocol = kProtocolVersion;
  const std::shared_ptr<LaneDriver> reduce = reduce_.lock();
  if (!reduce) return;  // the engine is shut down
  ask.transport = reduce->transport().name();
  ask.tag = tag_;
  ask.name = name_.substr(0, kMostNameBytes);
  for (const StreamAddress& peer : agreement.reduce_peers) ask.uids.push_back(peer.uid);
  for (uint32_t m = 0; m < agreement.reduce_peers.size(); m++) {
    ask.host_of.push_back(hosts_fold_ ? agreement.host_of[m] : m);
  }
  for (const std::string& rack : agreement.racks) {
    const auto at = std::find(ask.racks.begin(), ask.racks.end(), rack);
    ask.rack_of.push_back(rack.empty() ? 0 : static_cast<uint32_t>(at - ask.racks.begin()) + 1);
    if (!rack.empty() && at == ask.racks.end()) ask.racks.push_back(rack);
  }
  if (secret_) {
    job.secret = secret_;
    ask.security = config_.security;
    for (const StreamAddress& peer : agreement.reduce_peers) ask.keys.push_back(peer.key);
  }
  ask.chunk = static_cast<uint32_t>(agreement.agreed.chunk);
  ask.incast = config_.incast;
  ask.fold = config_.fold;
  ask.aggregate = config_.aggregate;
  ask.link_rate = config_.link_rate;
  job.offer = [weak = reduce_, tag = tag_](std::vector<wire::StationEntry> stations) {
    const auto lane = weak.lock();
    if (!lane) return;
    lane->push([tag, stations = std::move(stations)](Lane& l, Nanos) {
      LaneGroup* const group = l.find_group(tag);
      if (group == nullptr) return;
      Stations::of(group->core().fold())->roster().propose(stations);
    });
  };
  if (const Status status = registrar_.enter(tag_, std::move(job)); !status.ok()) {
    log(LogLevel::kWarn, "group '%s' has no aggregators: %s", name_.c_str(),
        status.message().c_str());
  }
}

}  // namespace mcast
