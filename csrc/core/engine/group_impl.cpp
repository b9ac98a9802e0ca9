// Posting: check the arguments, copy the own block if it is not in place (on the caller's thread,
// so the lane never stalls on it), take a sequence number and push the post to the lane under one
// lock, so that sequence order is queue order. Failures found by the lane come back through a
// listener and make every later post fail at once with the first reason.
#include "engine/group_impl.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/log.h"
#include "engine/clock.h"

namespace mcast {
namespace {

constexpr Nanos kWarnInterval = 60 * kSecond;
constexpr Nanos kAskInterval = 200 * kMilli;  // between looks at GroupSpec::interrupted

GroupParams make_params(const std::string& name, Member rank, const Config& config,
                        const Agreement& agreement) {
  GroupParams p;
  p.name = name;
  p.self = rank;
  p.tag = agreement.tag;
  p.agreed = agreement.agreed;
  p.arity = static_cast<uint32_t>(config.arity);
  p.ahead = static_cast<uint32_t>(config.ahead);
  p.staging = config.staging;
  p.retransmit = config.retransmit;
  p.liveness_limit = config.liveness_limit;
  p.alpha = config.cutoff;
  p.probe_timeout = config.probe_timeout;
  p.try_multicast = config.algorithm != "ring";
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

GroupImpl::GroupImpl(const GroupSpec& spec, std::shared_ptr<LaneThread> lane)
    : name_(spec.name),
      rank_(spec.rank),
      size_(spec.size),
      config_(spec.config),
      pid_(getpid()),
      lane_(std::move(lane)) {
  fixed_.name = name_;
  fixed_.rank = rank_;
  fixed_.size = static_cast<Member>(size_);
  fixed_.path = "local";
  fixed_.reason = "one rank";
  fixed_.transport = lane_ != nullptr ? lane_->description() : "none";
  fixed_.eager = config_.eager;
}

GroupImpl::~GroupImpl() {
  const Status status = close_with_linger();
  if (!status.ok()) log(LogLevel::kInfo, "group '%s': %s", name_.c_str(), status.message().c_str());
}

bool GroupImpl::here() const { return getpid() == pid_; }

Status GroupImpl::open(const Agreement& agreement, Nanos deadline,
                       const std::function<bool()>& interrupted) {
  tag_ = agreement.tag;
  GroupParams params = make_params(name_, rank_, config_, agreement);
  auto ready = std::make_shared<std::promise<Status>>();
  std::future<Status> future = ready->get_future();
  const bool pushed = lane_->push([params, agreement, ready, counters = counters_, state = state_](
                                      Lane& lane, Nanos now) mutable {
    std::vector<PeerId> peers;
    for (size_t m = 0; m < agreement.peers.size(); m++) {
      peers.push_back(m == params.self ? kNoPeer
                                       : lane.transport().stream().add_peer(agreement.peers[m]));
    }
    bool joined = false;
    if (params.try_multicast) {
      const Status status = lane.transport().datagram().join(agreement.address);
      joined = status.ok();
      if (!joined) params.multicast_problem = status.message();
    }
    LaneGroup& group = lane.add_group(params, agreement.address, joined, std::move(peers), now,
                                      std::move(counters));
    group.core().set_failure_listener([state](const Status& why) {
      std::lock_guard<std::mutex> lock(state->mutex);
      if (state->failure.ok()) state->failure = why;
    });
    group.core().set_path_listener([state](const std::string& path, const std::string& why) {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->path = path;
      state->reason = why;
    });
    group.core().start_probe(now, [ready](const Status& status) { ready->set_value(status); });
  });
  if (!pushed) return Status(Code::kClosed, "the engine is shut down");
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
    abort("rank " + std::to_string(rank_) + " waited too long for the group to be made");
    return Status(Code::kTimeout,
                  "group '" + name_ + "': some ranks did not finish creating it in time");
  }
  if (Status status = future.get(); !status.ok()) {
    return status.with_context("creating group '" + name_ + "'");
  }
  lane_->call([this](Lane& lane, Nanos) {
    if (LaneGroup* group = lane.find_group(tag_)) {
      fixed_.path = path_name(group->core().path());
      fixed_.reason = group->core().path_reason();
    }
  });
  const Agreed& agreed = agreement.agreed;
  const Plan plan = make_plan({wire::Kind::kBroadcast, 0, 0, 1ull << 40, ""}, agreed);
  fixed_.chunk = agreed.chunk;
  fixed_.window = static_cast<size_t>(plan.window) * agreed.chunk;
  fixed_.eager = std::min(agreed.eager, agreed.budget / 4);
  log(LogLevel::kInfo, "group '%s': rank %u of %u on %u host(s), path %s (%s), chunk %zu, %s",
      name_.c_str(), unsigned{rank_}, size_, agreement.hosts, fixed_.path.c_str(),
      fixed_.reason.c_str(), agreed.chunk, fixed_.transport.c_str());
  if (fixed_.path == "ring" && config_.algorithm == "auto" && rank_ == 0) warn_of_ring();
  return {};
}

void GroupImpl::warn_of_ring() const {
  // A job may make hundreds of groups, and all have the same reason.
  static std::mutex* const mutex = new std::mutex;
  static RateLimit* const limit = new RateLimit(kWarnInterval);
  uint64_t before = 0;
  {
    std::lock_guard<std::mutex> lock(*mutex);
    if (!limit->allow(monotonic_now())) return;
    before = limit->suppressed();
  }
  const std::string others =
      before == 0 ? ""
                  : " (and " + std::to_string(before) + " other groups since the last warning)";
  log(LogLevel::kWarn, "group '%s' uses the unicast ring: %s%s", name_.c_str(),
      fixed_.reason.c_str(), others.c_str());
}

Status GroupImpl::refuse(const std::string& op) const {
  if (!here()) {
    return Status(
        Code::kClosed,
        op + ": group '" + name_ + "' belongs to the parent process; make a new group after fork");
  }
  if (!state_->failure.ok()) {
    return Status(state_->failure.code(),
                  op + ": group '" + name_ + "' failed earlier and cannot be used: " +
                      state_->failure.message() + "; destroy it and make a new one");
  }
  if (state_->closed) return Status(Code::kClosed, op + ": group '" + name_ + "' is closed");
  return {};
}

Result<Sequence> GroupImpl::post(wire::Descriptor descriptor, Slice input,
                                 std::vector<Slice> outputs, PostOptions options) {
  Sequence sequence = 0;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (Status status = refuse(descriptor.name); !status.ok()) return status;
    sequence = state_->next++;
    if (lane_ != nullptr) {
      auto post = std::make_shared<Post>();
      post->sequence = sequence;
      post->descriptor = std::move(descriptor);
      post->input = std::move(input);
      post->outputs = std::move(outputs);
      post->posted = monotonic_now();
      post->timeout = options.timeout;
      post->done = std::move(options.done);
      post->on_mark = std::move(options.on_mark);
      post->mark_step = options.mark_step;
      const bool pushed = lane_->push([tag = tag_, post](Lane& lane, Nanos now) {
        LaneGroup* group = lane.find_group(tag);
        if (group != nullptr) {
          group->core().post(std::move(*post), now);
        } else if (post->done) {
          post->done(Status(Code::kClosed, "the group was closed"));
        }
      });
      if (!pushed) return Status(Code::kClosed, "the engine is shut down");
      return sequence;
    }
  }
  counters_->add(Counter::ops_posted);
  counters_->add(Counter::ops_completed);
  if (options.done) options.done({});
  return sequence;
}

Result<Sequence> GroupImpl::post_broadcast(Slice data, Member root, PostOptions options) {
  const std::string name = options.label.name[0] ? options.label.name : "broadcast";
  if (root >= size_) {
    return Status(Code::kInvalidArgument, name + ": root " + std::to_string(root) +
                                              " is not a rank of group '" + name_ + "' (size " +
                                              std::to_string(size_) + ")");
  }
  wire::Descriptor d{wire::Kind::kBroadcast, options.label.element, root, data.length, name};
  const Slice input = root == rank_ ? data : Slice{};
  return post(std::move(d), input, {std::move(data)}, std::move(options));
}

Result<Sequence> GroupImpl::post_allgather(Slice input, std::vector<Slice> outputs,
                                           PostOptions options) {
  const std::string name = options.label.name[0] ? options.label.name : "all_gather";
  if (outputs.size() != size_) {
    return Status(Code::kInvalidArgument, name + ": " + std::to_string(outputs.size()) +
                                              " outputs for " + std::to_string(size_) + " ranks");
  }
  for (size_t i = 0; i < outputs.size(); i++) {
    if (outputs[i].length != input.length) {
      return Status(Code::kInvalidArgument, name + ": output " + std::to_string(i) + " has " +
                                                std::to_string(outputs[i].length) +
                                                " bytes, the input has " +
                                                std::to_string(input.length));
    }
  }
  const Slice& own = outputs[rank_];
  if (input.length > 0 && own.data() != input.data()) {
    const auto a = reinterpret_cast<uintptr_t>(input.data());
    const auto b = reinterpret_cast<uintptr_t>(own.data());
    if (a < b + input.length && b < a + input.length) {
      return Status(Code::kInvalidArgument, name + ": the input overlaps its output block partly");
    }
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      if (Status status = refuse(name); !status.ok()) return status;
    }
    std::memcpy(own.data(), input.data(), input.length);
  }
  wire::Descriptor d{wire::Kind::kAllgather, options.label.element, kNoMember, input.length, name};
  return post(std::move(d), std::move(input), std::move(outputs), std::move(options));
}

Result<Sequence> GroupImpl::post_barrier(PostOptions options) {
  const std::string name = options.label.name[0] ? options.label.name : "barrier";
  return post({wire::Kind::kBarrier, 0xff, kNoMember, 0, name}, {}, {}, std::move(options));
}

std::function<void()> GroupImpl::waker() const {
  return [weak = std::weak_ptr<LaneThread>(lane_)] {
    if (const auto lane = weak.lock()) lane->transport().wake();
  };
}

void GroupImpl::abort(const std::string& reason) {
  if (!here()) return;
  const Status why(Code::kAborted, "aborted by rank " + std::to_string(rank_) + ": " + reason);
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->closed || !state_->failure.ok()) return;
    state_->failure = why;
  }
  if (lane_ == nullptr) return;
  lane_->push([tag = tag_, why, rank = rank_](Lane& lane, Nanos now) {
    if (LaneGroup* group = lane.find_group(tag)) group->core().fail(why, rank, now);
  });
}

std::future<Status> GroupImpl::start_close(Nanos limit) {
  auto result = std::make_shared<std::promise<Status>>();
  std::future<Status> future = result->get_future();
  bool closed = false;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    closed = std::exchange(state_->closed, true);
  }
  if (closed || lane_ == nullptr || !here() || tag_ == 0) {
    result->set_value({});
    return future;
  }
  const Nanos now = monotonic_now();
  lane_->close_group(tag_, limit > kNever - now ? kNever : now + limit, result);
  return future;
}

Status GroupImpl::close(Nanos limit) {
  std::future<Status> future = start_close(limit);
  // The lane answers by the deadline; the margin only guards against a lane that is being stopped.
  const Nanos margin = std::min<Nanos>(limit, 86400 * kSecond) + 10 * kSecond;
  if (future.wait_for(std::chrono::nanoseconds(margin)) != std::future_status::ready) {
    return Status(Code::kTimeout, "the lane of group '" + name_ + "' does not answer");
  }
  return future.get();
}

GroupStats GroupImpl::stats() const {
  GroupStats s = fixed_;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->path.empty()) {
      s.path = state_->path;
      s.reason = state_->reason;
    }
    s.next_sequence = state_->next;
    s.failure = state_->failure.message();
  }
  s.counters.reserve(kCounterCount);
  for (size_t i = 0; i < kCounterCount; i++) {
    const auto c = static_cast<Counter>(i);
    s.counters.emplace_back(counter_name(c), counters_->get(c));
  }
  s.repair_from_to.resize(size_);
  if (lane_ != nullptr && here()) {
    lane_->call([&](Lane& lane, Nanos) {
      if (LaneGroup* group = lane.find_group(tag_)) s.repair_from_to = group->core().repairs();
      // What could not be attributed to a group is shown by every group of the lane.
      s.counters[static_cast<size_t>(Counter::foreign)].second += lane.foreign();
      s.counters[static_cast<size_t>(Counter::malformed)].second += lane.malformed();
    });
  }
  return s;
}

}  // namespace mcast
