// Opens a group on its two lanes: adds it to both, probes on the multicast lane, and the reduce
// lane adopts the result. A failure found by a lane is reported to a listener, makes every later
// post fail at once with the first reason, and fails the other lane, too: a little later, because
// the members' aborts travel on each lane separately, and the abort of that lane says which of its
// operations were complete everywhere.
#include <utility>

#include "base/clock.h"
#include "base/coverage.h"
#include "base/errors.h"
#include "base/log.h"
#include "runtime/network_group.h"

namespace mcast {
namespace {

constexpr Nanos kWarnInterval = 60 * kSecond;
constexpr Nanos kAskInterval = 200 * kMilli;  // interval of calls of GroupSpec::interrupted
// Time for the other lane to receive its own abort, once one lane has failed: far more than one
// trip.
constexpr Nanos kAbortPatience = 50 * kMilli;

const char* path_name(GroupCore::Path path) {
  switch (path) {
    case GroupCore::Path::kUnknown:
      return "unknown";
    case GroupCore::Path::kMulticast:
      return "multicast";
    case GroupCore::Path::kRing:
      return "ring";
    case GroupCore::Path::kLocal:
      return "local";
  }
  return "unknown";
}

}  // namespace

GroupParams NetworkGroup::make_params(const Agreement& agreement) {
  GroupParams p;
  p.name = name_;
  p.self = rank_;
  p.tag = agreement.tag;
  p.agreed = agreement.agreed;
  p.arity = static_cast<uint32_t>(config_.arity);
  p.staging = config_.staging;
  p.retransmit = config_.retransmit;
  p.liveness_limit = config_.liveness_limit;
  p.alpha = config_.cutoff;
  p.probe_timeout = config_.probe_timeout;
  p.aggregator_patience = config_.aggregator_patience;
  p.multicast.wanted = config_.algorithm != "ring";
  p.policy = config_.lane_policy == "gather" ? LanePolicy::kGather : LanePolicy::kFair;
  p.multicast.required = config_.algorithm == "multicast";
  // Between ranks of one host no gateway limits the rate: differences there come from the CPU's
  // load.
  if (config_.algorithm == "auto" && agreement.hosts > 1) p.multicast.rate_test = config_.rate_test;
  p.multicast.link_rate = config_.link_rate;
  p.trace = trace_;
  p.multicast.arrived = parts_.arrived;
  if (parts_.read_host) {
    p.host_of = agreement.host_of;
    p.read_host = parts_.read_host;
    p.agreed.contributors = agreement.hosts;
  }
  if (!agreement.racks.empty()) {
    p.agreed.racks = p.host_of.empty() ? Racks(agreement.racks)
                                       : racks_of_hosts(Hosts(p.host_of), agreement.racks);
  }
  return p;
}

void NetworkGroup::add_to_lane(LaneId id, const GroupParams& params, const Agreement& agreement,
                               Lane& lane, Nanos deadline, Nanos now) {
  const bool reduces = id == LaneId::kReduce;
  const auto& peers = reduces ? agreement.reduce_peers : agreement.peers;
  std::vector<PeerId> ids;
  for (size_t m = 0; m < peers.size(); m++) {
    ids.push_back(m == params.self ? kNoPeer : lane.transport().stream().add_peer(peers[m]));
  }
  GroupParams own = params;
  if (reduces) {
    own.partial = config_.partial;
    own.fold = parts_.make_fold;
  }
  own.lane = static_cast<uint8_t>(id);
  own.multicast.guard = std::move(parts_.guards[id]);
  GroupAddress address{reduces ? agreement.reduce_address : agreement.address, false,
                       agreement.echo};
  for (const StreamAddress& sender : reduces ? agreement.reduce_senders : agreement.senders) {
    std::vector<IpAddress> its = lane.transport().datagram().sources_of(sender);
    address.hosts.insert(address.hosts.end(), its.begin(), its.end());
    if (own.multicast.guard != nullptr) address.sources.push_back(std::move(its));
  }
  own.multicast.headers = lane.transport().datagram().header_bytes();
  if (params.multicast.wanted) {
    const Status status = lane.transport().datagram().join(address.multicast);
    address.joined = status.ok();
    if (!address.joined && own.multicast.problem.empty()) {
      own.multicast.problem = status.message();
    }
  }
  GroupCore& core = lane.add_group(own, address, std::move(ids), now, counters_[id]).core();
  // A little less than the group's own limit, so that the error says why a rank is not reached.
  lane.keep_trying(tag_, deadline - std::min(kSecond, creation_limit_ / 4));
  if (reduces && parts_.fold) parts_.fold->opened(core);
  // A lane that fails also fails the other one: the group is one unit.
  core.set_failure_listener(
      [state = state_, tag = tag_, &lane, holder = holder_, fold = parts_.fold,
       other = std::weak_ptr(parts_.lanes[other_lane(id)]), reduces](const Status& why) {
        // The connections to a silent peer may still break, long after the network has healed: the
        // next group must not use them.
        if (why.code() == Code::kPeerLost || why.code() == Code::kTimeout) lane.poison();
        if (state->note_failure(why) && reduces) MCAST_COVER(reduce_lane_fails_first);
        {
          std::lock_guard<std::mutex> lock(holder->mutex);
          if (holder->split != nullptr) holder->split->fail(why);
        }
        if (fold) fold->leave();
        if (const auto o = other.lock()) {
          LaneGroup* const here = lane.find_group(tag);
          const GroupCore::Path path = here ? here->core().path() : GroupCore::Path::kUnknown;
          o->push([tag, why, path](Lane& l, Nanos at) {
            if (LaneGroup* group = l.find_group(tag)) {
              group->core().learn_path(path, at);
              group->core().fail_later(why, at + kAbortPatience);
            }
          });
        }
      });
}

// The reduce lane first: once the probe is over, every rank has added it.
bool NetworkGroup::begin_open(const Agreement& agreement, Completion probed, Nanos deadline) {
  tag_ = agreement.tag;
  fixed_.streams = "every rank";
  fixed_.contributions =
      parts_.read_host ? "one per host (" + std::to_string(agreement.hosts) + ")" : "one per rank";
  GroupParams params = make_params(agreement);
  agreed_ = params.agreed;
  const bool added = parts_.lanes.reduce->call([&](Lane& lane, Nanos now) {
    add_to_lane(LaneId::kReduce, params, agreement, lane, deadline, now);
    params.multicast.problem = lane.find_group(tag_)->core().params().multicast.problem;
  });
  return added && parts_.lanes.multicast->push([this, params, agreement, probed, deadline](
                                                   Lane& lane, Nanos now) {
    add_to_lane(LaneId::kMulticast, params, agreement, lane, deadline, now);
    GroupCore& core = lane.find_group(tag_)->core();
    core.set_path_listener([state = state_](const std::string& path, const std::string& why) {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->path = path;
      state->reason = why;
    });
    core.start_probe(now, probed);
  });
}

Status NetworkGroup::wait_for_probe(std::future<Status> probed, Nanos deadline,
                                    const std::function<bool()>& interrupted) {
  const auto wait_slice = [&] {
    const Nanos left = std::max<Nanos>(0, deadline - monotonic_now());
    return probed.wait_for(std::chrono::nanoseconds(std::min(left, kAskInterval))) ==
           std::future_status::ready;
  };
  bool ready = wait_slice();
  while (!ready && monotonic_now() < deadline) {
    if (interrupted && interrupted()) {
      abort("rank " + std::to_string(rank_) + " was interrupted");
      return Status(Code::kAborted, "group '" + name_ + "': its creation was interrupted");
    }
    ready = wait_slice();
  }
  if (!ready) {
    Status late = creation_timeout(deadline);
    abort("rank " + std::to_string(rank_) +
          " waited too long for the group to be made: " + late.message());
    return late;
  }
  return probed.get().with_context("creating group '" + name_ + "'");
}

// The reduce lane takes the path that the multicast lane has found.
void NetworkGroup::settle_path() {
  GroupCore::Path path = GroupCore::Path::kUnknown;
  bool no_multicast = false;
  parts_.lanes.multicast->call([&](Lane& lane, Nanos) {
    lane.keep_trying(tag_, 0);
    if (LaneGroup* group = lane.find_group(tag_)) {
      path = group->core().path();
      fixed_.path = path_name(path);
      fixed_.reason = group->core().path_reason();
      no_multicast = group->core().no_multicast();
    }
  });
  parts_.lanes.reduce->call([&](Lane& lane, Nanos) {
    lane.keep_trying(tag_, 0);
    if (LaneGroup* group = lane.find_group(tag_)) {
      group->core().adopt_path(path, fixed_.reason, no_multicast);
    }
  });
}

// The part of the agreement that stats() shows.
void NetworkGroup::describe() {
  const Plan plan = make_plan({wire::Kind::kBroadcast, 0, 0, 1ull << 40, ""}, agreed_);
  fixed_.chunk = agreed_.chunk;
  fixed_.segment =
      make_plan({wire::Kind::kReduceScatter, 0, kNoMember, 1ull << 40, ""}, agreed_).reduce.segment;
  fixed_.window = static_cast<size_t>(plan.window) * agreed_.chunk;
  fixed_.eager = std::min(agreed_.eager, agreed_.budget / 4);
  max_block_ = max_block(agreed_);
  if (config_.partial != 0) {
    fixed_.aggregation.no_partial = parts_.read_host        ? "ranks of a host contribute together"
                                    : !agreed_.racks.flat() ? "ranks are in several racks"
                                                            : "";
  }
}

Status NetworkGroup::open(const Agreement& agreement, Nanos deadline,
                          const std::function<bool()>& interrupted) {
  auto probed = std::make_shared<std::promise<Status>>();
  std::future<Status> future = probed->get_future();
  const Completion settled = [probed](const Status& s) { probed->set_value(s); };
  if (!begin_open(agreement, settled, deadline)) {
    return Status(Code::kClosed, "group '" + name_ + "': the engine is shut down");
  }
  Status status = wait_for_probe(std::move(future), deadline, interrupted);
  if (!status.ok()) return status;
  settle(agreement);
  if (parts_.fold) {
    auto first = std::make_shared<std::promise<void>>();
    std::future<void> in_force = first->get_future();
    parts_.fold->begin(agreement, [first] { first->set_value(); });
    wait_for_stations(std::move(in_force), deadline, interrupted);
  }
  return {};
}

// The creation waits a moment for the first roster, so that the first operations can use it, and
// continues without if there is none yet.
void NetworkGroup::wait_for_stations(std::future<void> first, Nanos deadline,
                                     const std::function<bool()>& interrupted) {
  const Nanos until = std::min(deadline, monotonic_now() + kFirstRoster);
  for (Nanos left = until - monotonic_now(); left > 0; left = until - monotonic_now()) {
    const std::chrono::nanoseconds slice(std::min(left, kAskInterval));
    if (first.wait_for(slice) == std::future_status::ready) return;
    if (interrupted && interrupted()) return;
  }
}

void NetworkGroup::settle(const Agreement& agreement) {
  settle_path();
  describe();
  log(LogLevel::kInfo, "group '%s': rank %u of %u on %u host(s), path %s (%s), chunk %zu, %s%s%s",
      name_.c_str(), unsigned{rank_}, size_, agreement.hosts, fixed_.path.c_str(),
      fixed_.reason.c_str(), fixed_.chunk, fixed_.transport.c_str(),
      parts_.not_shared.empty() ? "" : "; no shared memory: ", parts_.not_shared.c_str());
  if (fixed_.path == "ring" && config_.algorithm == "auto" && rank_ == 0) warn_of_ring();
}

Status NetworkGroup::creation_timeout(Nanos deadline) const {
  std::string open;
  parts_.lanes.multicast->call([this, &open](Lane& lane, Nanos) {
    if (LaneGroup* group = lane.find_group(tag_)) open = group->core().probe_text();
  });
  const Nanos elapsed = creation_limit_ + std::max<Nanos>(0, monotonic_now() - deadline);
  return Status(Code::kTimeout,
                error_text<ErrorId::creation_late>(name_, seconds_text(elapsed),
                                                   seconds_text(creation_limit_)) +
                    ": " + (open.empty() ? "some ranks did not finish creating it" : open) +
                    "; run torch-mcast doctor on all hosts, or raise the timeout");
}

void NetworkGroup::warn_of_ring() const {
  // A job may make hundreds of groups, and all have the same reason.
  static std::mutex* const mutex = new std::mutex;
  static RateLimit* const limit = new RateLimit(kWarnInterval);
  uint64_t before = 0;
  {
    // If it is locked, another group warns right now, or was about to when this process forked.
    const std::unique_lock<std::mutex> lock(*mutex, std::try_to_lock);
    if (!lock || !limit->allow(monotonic_now())) return;
    before = limit->suppressed();
  }
  const std::string others =
      before == 0 ? ""
                  : " (and " + std::to_string(before) + " other groups since the last warning)";
  log(LogLevel::kWarn, "group '%s' uses the unicast ring: %s%s", name_.c_str(),
      fixed_.reason.c_str(), others.c_str());
}

}  // namespace mcast
