// The life of a group on its two lanes: it is added to both, probed on the multicast lane, and the
// reduce lane adopts the result. Failures found by a lane come back through a listener, fail the
// other lane too, and make every later post fail at once with the first reason. (Posting is in
// group_posts.cpp.)
#include "engine/group_impl.h"

#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "engine/clock.h"

namespace mcast {
namespace {

constexpr Nanos kWarnInterval = 60 * kSecond;
constexpr Nanos kWordPatience = 2 * kSecond;  // for a better word on why a part has failed
constexpr Nanos kAskInterval = 200 * kMilli;  // between looks at GroupSpec::interrupted

GroupParams make_params(const std::string& name, Member rank, const Config& config,
                        const Agreement& agreement) {
  GroupParams p;
  p.name = name;
  p.self = rank;
  p.tag = agreement.tag;
  p.agreed = agreement.agreed;
  p.arity = static_cast<uint32_t>(config.arity);
  p.staging = config.staging;
  p.retransmit = config.retransmit;
  p.liveness_limit = config.liveness_limit;
  p.alpha = config.cutoff;
  p.probe_timeout = config.probe_timeout;
  p.try_multicast = config.algorithm != "ring";
  p.policy = config.lane_policy == "gather" ? LanePolicy::kGather : LanePolicy::kFair;
  p.require_multicast = config.algorithm == "multicast";
  return p;
}

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

GroupImpl::GroupImpl(const GroupSpec& spec, std::shared_ptr<LaneThread> lane,
                     std::shared_ptr<LaneThread> reduce)
    : GroupBase(spec), creation_limit_(spec.timeout), lanes_{std::move(lane), std::move(reduce)} {
  if (lanes_[0] != nullptr) fixed_.transport = lanes_[0]->description();
}

GroupImpl::~GroupImpl() {
  const Status status = close_with_linger();
  if (!status.ok()) log(LogLevel::kInfo, "group '%s': %s", name_.c_str(), status.message().c_str());
  if (!here()) return;  // it may have been held when the process forked
  std::lock_guard<std::mutex> lock(holder_->mutex);
  holder_->split = nullptr;
}

void GroupImpl::add_to_lane(size_t index, const GroupParams& params,
                            const MulticastAddress& address, Echo echo,
                            const std::vector<StreamAddress>& peers, Lane& lane, Nanos now) {
  std::vector<PeerId> ids;
  for (size_t m = 0; m < peers.size(); m++) {
    ids.push_back(m == params.self ? kNoPeer : lane.transport().stream().add_peer(peers[m]));
  }
  GroupParams own = params;
  own.lane = static_cast<uint8_t>(index);
  bool joined = false;
  if (params.try_multicast) {
    const Status status = lane.transport().datagram().join(address);
    joined = status.ok();
    if (!joined && own.multicast_problem.empty()) own.multicast_problem = status.message();
  }
  GroupCore& core =
      lane.add_group(own, {address, joined, echo}, std::move(ids), now, counters_[index]).core();
  // A lane that fails takes the other with it: the group is one.
  core.set_failure_listener([state = state_, tag = tag_, &lane, holder = holder_,
                             other = std::weak_ptr(lanes_[1 - index])](const Status& why) {
    // Where a peer was silent, its connections may yet break, long after the network has healed:
    // the next group must not be made over them.
    if (why.code() == Code::kPeerLost || why.code() == Code::kTimeout) lane.poison();
    {
      std::lock_guard<std::mutex> lock(state->mutex);
      if (state->failure.ok()) state->failure = why;
    }
    {
      std::lock_guard<std::mutex> lock(holder->mutex);
      if (holder->split != nullptr) holder->split->fail(why);
    }
    if (const auto o = other.lock()) {
      o->push([tag, why](Lane& l, Nanos at) {
        if (LaneGroup* group = l.find_group(tag)) group->core().fail(why, kNoMember, at);
      });
    }
  });
}

Status GroupImpl::open(const Agreement& agreement, Nanos deadline,
                       const std::function<bool()>& interrupted) {
  tag_ = agreement.tag;
  GroupParams params = make_params(name_, rank_, config_, agreement);
  params.trace = trace_;
  params.multicast_arrived = arrived_;
  fixed_.contributions = "one per rank";
  fixed_.streams = "every rank";
  if (read_host_) {
    params.host_of = agreement.host_of;
    params.read_host = read_host_;
    params.agreed.contributors = agreement.hosts;
    fixed_.contributions = "one per host (" + std::to_string(agreement.hosts) + ")";
  }
  // The reduce lane first: once the probe is over, every rank's is there.
  const bool added = lanes_[1]->call([&](Lane& lane, Nanos now) {
    add_to_lane(1, params, agreement.reduce_address, agreement.echo, agreement.reduce_peers, lane,
                now);
    params.multicast_problem = lane.find_group(tag_)->core().params().multicast_problem;
  });
  auto ready = std::make_shared<std::promise<Status>>();
  std::future<Status> future = ready->get_future();
  const bool pushed =
      added && lanes_[0]->push([this, params, agreement, ready](Lane& lane, Nanos now) {
        add_to_lane(0, params, agreement.address, agreement.echo, agreement.peers, lane, now);
        GroupCore& core = lane.find_group(tag_)->core();
        core.set_path_listener([state = state_](const std::string& path, const std::string& why) {
          std::lock_guard<std::mutex> lock(state->mutex);
          state->path = path;
          state->reason = why;
        });
        core.start_probe(now, [ready](const Status& status) { ready->set_value(status); });
      });
  if (!pushed) return Status(Code::kClosed, "group '" + name_ + "': the engine is shut down");
  const auto wait_slice = [&] {
    const Nanos left = std::max<Nanos>(0, deadline - monotonic_now());
    return future.wait_for(std::chrono::nanoseconds(std::min(left, kAskInterval))) ==
           std::future_status::ready;
  };
  bool ready_now = wait_slice();
  while (!ready_now && monotonic_now() < deadline) {
    if (interrupted && interrupted()) {
      abort("rank " + std::to_string(rank_) + " was interrupted");
      return Status(Code::kAborted, "group '" + name_ + "': its creation was interrupted");
    }
    ready_now = wait_slice();
  }
  if (!ready_now) {
    Status late = creation_timeout(deadline);
    abort("rank " + std::to_string(rank_) +
          " waited too long for the group to be made: " + late.message());
    return late;
  }
  if (Status status = future.get(); !status.ok()) {
    return status.with_context("creating group '" + name_ + "'");
  }
  GroupCore::Path path = GroupCore::Path::kUnknown;
  lanes_[0]->call([&](Lane& lane, Nanos) {
    if (LaneGroup* group = lane.find_group(tag_)) {
      path = group->core().path();
      fixed_.path = path_name(path);
      fixed_.reason = group->core().path_reason();
    }
  });
  lanes_[1]->call([&](Lane& lane, Nanos) {
    if (LaneGroup* group = lane.find_group(tag_)) {
      group->core().adopt_path(path, fixed_.reason);
    }
  });
  const Agreed& agreed = params.agreed;
  const Plan plan = make_plan({wire::Kind::kBroadcast, 0, 0, 1ull << 40, ""}, agreed);
  fixed_.chunk = agreed.chunk;
  fixed_.segment =
      make_plan({wire::Kind::kReduceScatter, 0, kNoMember, 1ull << 40, ""}, agreed).segment;
  max_block_ = max_block(agreed);
  fixed_.window = static_cast<size_t>(plan.window) * agreed.chunk;
  fixed_.eager = std::min(agreed.eager, agreed.budget / 4);
  log(LogLevel::kInfo, "group '%s': rank %u of %u on %u host(s), path %s (%s), chunk %zu, %s%s",
      name_.c_str(), unsigned{rank_}, size_, agreement.hosts, fixed_.path.c_str(),
      fixed_.reason.c_str(), agreed.chunk, fixed_.transport.c_str(), not_shared_.c_str());
  if (fixed_.path == "ring" && config_.algorithm == "auto" && rank_ == 0) warn_of_ring();
  return {};
}

Status GroupImpl::creation_timeout(Nanos deadline) const {
  std::string open;
  lanes_[0]->call([this, &open](Lane& lane, Nanos) {
    if (LaneGroup* group = lane.find_group(tag_)) open = group->core().probe_text();
  });
  const Nanos elapsed = creation_limit_ + std::max<Nanos>(0, monotonic_now() - deadline);
  return Status(Code::kTimeout,
                "group '" + name_ + "' was not made after " + seconds_text(elapsed) + " (limit " +
                    seconds_text(creation_limit_) +
                    "): " + (open.empty() ? "some ranks did not finish creating it" : open) +
                    "; run torch-mcast doctor on all hosts, or raise the timeout");
}

void GroupImpl::warn_of_ring() const {
  // A job may make hundreds of groups, and all have the same reason.
  static std::mutex* const mutex = new std::mutex;
  static RateLimit* const limit = new RateLimit(kWarnInterval);
  uint64_t before = 0;
  {
    // Where it is held another group warns just now, or was about to when this process forked.
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

void GroupImpl::split(std::unique_ptr<Split> how) {
  split_ = std::move(how);
  fixed_.streams = split_->streams_text();
  std::lock_guard<std::mutex> lock(holder_->mutex);
  holder_->split = split_.get();
}

// The operation here only makes sure that all ranks call it, and ends it for all; `done` runs when
// it and all parts are over.
Status GroupImpl::push_split(Post post) {
  struct Ends {
    std::atomic<int> left{2};
    Status outcome;  // the operation's; that of the parts only matters through it
    Completion done;
    void one() {
      if (--left == 0 && done) done(outcome);
    }
  };
  auto ends = std::make_shared<Ends>();
  ends->done = std::move(post.done);
  auto arrived = std::make_shared<std::atomic<bool>>(false);
  Post whole;
  const Sequence sequence = whole.sequence = post.sequence;
  whole.descriptor = post.descriptor;
  whole.posted = post.posted;
  whole.timeout = post.timeout;
  whole.delegated = arrived;
  whole.done = [ends](const Status& status) {
    ends->outcome = status;
    ends->one();
  };
  if (Status status = push_to_lane(0, std::move(whole)); !status.ok()) return status;
  const auto on_lane = [weak = std::weak_ptr(lanes_[0]),
                        tag = tag_](std::function<void(GroupCore&, Nanos)> act) {
    const auto lane = weak.lock();
    return lane && lane->push([tag, act = std::move(act)](Lane& l, Nanos now) {
      if (LaneGroup* group = l.find_group(tag)) act(group->core(), now);
    });
  };
  Split::Events events;
  events.arrived = [arrived, on_lane, sequence] {
    arrived->store(true, std::memory_order_release);
    on_lane([sequence](GroupCore& core, Nanos now) { core.arrived(sequence, now); });
  };
  events.trouble = [on_lane, ranks = split_->ranks_text()](const Status& why) {
    // Our own connections to whoever is lost break as well, and that says which rank it is.
    const Status told(why.code(), why.message() + (ranks.empty() ? "" : " (" + ranks + ")"));
    on_lane([told](GroupCore& core, Nanos now) { core.fail_later(told, now + kWordPatience); });
  };
  events.ended = [weak = std::weak_ptr(lanes_[0]), ends] {
    // Not in the posting call, which holds the group's lock.
    const auto lane = weak.lock();
    if (!lane || !lane->push([ends](Lane&, Nanos) { ends->one(); })) ends->one();
  };
  split_->post(std::move(post), std::move(events));
  return {};
}

Status GroupImpl::push(size_t index, Post post) {
  if (index == 0 && split_ && split_->carries(post.descriptor)) {
    return push_split(std::move(post));
  }
  return push_to_lane(index, std::move(post));
}

Status GroupImpl::push_to_lane(size_t index, Post post) {
  const auto gone = [name = name_](const char* how, const Post& p) {
    return Status(Code::kClosed, p.descriptor.name + " (sequence " + std::to_string(p.sequence) +
                                     "): group '" + name + "' " + how);
  };
  auto shared = std::make_shared<Post>(std::move(post));
  const bool pushed = lanes_[index]->push([tag = tag_, shared, gone](Lane& lane, Nanos now) {
    LaneGroup* group = lane.find_group(tag);
    if (group != nullptr) {
      group->core().post(std::move(*shared), now);
    } else if (shared->done) {
      shared->done(gone("was closed meanwhile", *shared));
    }
  });
  return pushed ? Status() : gone("ended with the engine, which is shut down", *shared);
}

std::function<void()> GroupImpl::waker() const {
  return [lanes = std::array{std::weak_ptr(lanes_[0]), std::weak_ptr(lanes_[1])},
          parts = split_ ? split_->waker() : std::function<void()>()] {
    for (const auto& weak : lanes) {
      if (const auto lane = weak.lock()) lane->transport().wake();
    }
    if (parts) parts();
  };
}

bool GroupImpl::has_lanes() const { return lanes_[0] != nullptr && tag_ != 0; }

void GroupImpl::fail_lane(size_t lane, const Status& why) {
  lanes_[lane]->push([tag = tag_, why, rank = rank_](Lane& l, Nanos now) {
    if (LaneGroup* group = l.find_group(tag)) group->core().fail(why, rank, now);
  });
}

void GroupImpl::close_lane(size_t lane, Nanos deadline, bool force, Completion closed) {
  lanes_[lane]->close_group(tag_, deadline, force, std::move(closed));
}

GroupStats GroupImpl::stats() const {
  GroupStats s = common_stats();
  if (lanes_[0] == nullptr || !here()) return s;
  if (split_) split_->add_to(s);
  for (const auto& lane : lanes_) {
    lane->call([&](Lane& l, Nanos) {
      if (LaneGroup* group = l.find_group(tag_)) {
        const auto& repairs = group->core().repairs();
        for (size_t m = 0; m < repairs.size(); m++) {
          s.repair_from_to[m].first += repairs[m].first;
          s.repair_from_to[m].second += repairs[m].second;
        }
      }
      // What could not be attributed to a group is shown by every group of the lane.
      s.counters[static_cast<size_t>(Counter::foreign)].second += l.foreign();
      s.counters[static_cast<size_t>(Counter::malformed)].second += l.malformed();
      s.counters[static_cast<size_t>(Counter::fragmented)].second +=
          l.transport().datagram().fragmented();
    });
  }
  return s;
}

}  // namespace mcast
