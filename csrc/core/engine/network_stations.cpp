// Gets stations for a group: rank 0 has its aggregators asked, and each rank's reduce lane agrees
// on the admitted stations. The creation waits a moment for the first roster, so that the first
// operations can use it, and continues without if there is none yet.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/net_address.h"
#include "base/version.h"
#include "engine/clock.h"
#include "engine/network_group.h"

namespace mcast {
namespace {

constexpr Nanos kInterruptLook = 200 * kMilli;  // interval of calls of GroupSpec::interrupted
constexpr size_t kMostNameBytes = 256;          // of a group, accepted by aggregators

}  // namespace

// Called when the group is added to the lane, before the first frame of a roster can arrive.
void NetworkGroup::listen_to_rosters(GroupCore& core) {
  RosterEvents events;
  Registrar* const registrar = parts_.registrar;
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
  core.set_roster_listener(std::move(events));
}

void NetworkGroup::ask_for_stations(const Agreement& agreement, std::function<void()> first) {
  {
    const std::lock_guard<std::mutex> lock(first_roster_->mutex);
    if (!first_roster_->there) first_roster_->told = std::exchange(first, nullptr);
  }
  if (first) first();
  if (rank_ == kConcluder) ask_aggregators(agreement);
}

void NetworkGroup::ask_aggregators(const Agreement& agreement) {
  Registrar::Job job;
  Result<std::vector<NetAddress>> addresses =
      parse_net_addresses(config_.aggregators, kMostAggregators);
  if (!addresses.ok()) return;  // the setting was checked before
  job.aggregators = std::move(addresses).value();
  wire::Ask& ask = job.ask;
  ask.version = version();
  ask.protocol = kProtocolVersion;
  ask.transport = parts_.lanes.reduce->transport().name();
  ask.tag = tag_;
  ask.name = name_.substr(0, kMostNameBytes);
  for (const StreamAddress& peer : agreement.reduce_peers) ask.uids.push_back(peer.uid);
  for (uint32_t m = 0; m < size_; m++) {
    ask.host_of.push_back(parts_.read_host ? agreement.host_of[m] : m);
  }
  for (const std::string& rack : agreement.racks) {
    const auto at = std::find(ask.racks.begin(), ask.racks.end(), rack);
    ask.rack_of.push_back(rack.empty() ? 0 : static_cast<uint32_t>(at - ask.racks.begin()) + 1);
    if (!rack.empty() && at == ask.racks.end()) ask.racks.push_back(rack);
  }
  if (parts_.secret) {
    job.secret = parts_.secret;
    ask.security = config_.security;
    for (const StreamAddress& peer : agreement.reduce_peers) ask.keys.push_back(peer.key);
  }
  ask.chunk = static_cast<uint32_t>(agreement.agreed.chunk);
  ask.incast = config_.incast;
  ask.fold = config_.fold;
  ask.aggregate = config_.aggregate;
  ask.link_rate = config_.link_rate;
  job.offer = [weak = std::weak_ptr(parts_.lanes.reduce),
               tag = tag_](std::vector<wire::StationEntry> stations) {
    const auto lane = weak.lock();
    if (!lane) return;
    lane->push([tag, stations = std::move(stations)](Lane& l, Nanos now) {
      if (LaneGroup* group = l.find_group(tag)) group->core().propose_stations(stations, now);
    });
  };
  if (const Status status = parts_.registrar->enter(tag_, std::move(job)); !status.ok()) {
    log(LogLevel::kWarn, "group '%s' has no aggregators: %s", name_.c_str(),
        status.message().c_str());
  }
}

void NetworkGroup::wait_for_stations(std::future<void> first, Nanos deadline,
                                     const std::function<bool()>& interrupted) {
  const Nanos until = std::min(deadline, monotonic_now() + kFirstRoster);
  for (Nanos left = until - monotonic_now(); left > 0; left = until - monotonic_now()) {
    const std::chrono::nanoseconds slice(std::min(left, kInterruptLook));
    if (first.wait_for(slice) == std::future_status::ready) return;
    if (interrupted && interrupted()) return;
  }
}

}  // namespace mcast
