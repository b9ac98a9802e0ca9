// Replaces the threads, futexes and processes of shm/lane.cpp. A turn takes the operations from
// the inbox, advances the state machine, checks once per tick the ranks that are waited for, and
// registers the events that it needs; a lane that is woken gets another turn soon. A rank that has
// been paused for the liveness limit counts as silent; ranks that wait for a killed rank notice it.
#include "sim/world/sim_host_group.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shm/thread.h"

namespace mcast::sim {

namespace {
constexpr Nanos kRingToTurn = 20 * kMicro;
constexpr Nanos kHostTurn = 1 * kMicro;
// Bytes per second at which a rank copies from another rank's memory.
constexpr double kCopyRate = 6e9;
}  // namespace

class SimHostLane final : public std::enable_shared_from_this<SimHostLane>, private HostPort {
 public:
  SimHostLane(const HostParams& params, Nanos liveness_limit, Surroundings& world,
              std::shared_ptr<SimSegment> segment, std::function<Nanos()> clock, Counters& counters,
              std::function<void(const Status&)> on_failure)
      : params_(params),
        liveness_limit_(liveness_limit),
        world_(world),
        segment_(std::move(segment)),
        clock_(std::move(clock)),
        on_failure_(std::move(on_failure)),
        silent_(params.size),
        core_(params, segment_->block(), *this, counters) {}

  void enqueue(Post post) {
    posts_.push_back(std::move(post));
    plan(world_.now());
  }
  void fail(const Status& why) {
    failures_.push_back(why);
    plan(world_.now());
  }
  void close(Nanos deadline, bool force, Completion done) {
    if (dead_) return done(Status(Code::kClosed, "the engine is shut down"));
    closings_.push_back({deadline, force, std::move(done)});
    plan(world_.now());
  }
  void look_again() { plan(world_.now() + kRingToTurn); }
  void kill() {
    dead_ = true;
    posts_.clear();
    closings_.clear();
  }

 private:
  struct Closing {
    Nanos deadline;
    bool force;
    Completion done;
  };

  Status read(Member from, uint64_t address, std::byte* to, size_t length) override {
    read_ += length;
    if (!world_.killed(segment_->ranks()[from])) return world_.memory().read(address, to, length);
    return Status(Code::kPeerLost, "its process has ended");
  }
  void wake(Member member, HostWaiter) override { ring(static_cast<LaneId>(params_.lane), member); }
  void wake_all() override {
    for (const LaneId lane : kBothLanes) {
      for (uint32_t m = 0; m < params_.size; m++) ring(lane, static_cast<Member>(m));
    }
  }
  Nanos now() override { return clock_(); }
  void ring(LaneId lane, Member member) {
    if (const auto peer = segment_->lanes_[lane][member].lock()) {
      peer->plan(world_.now() + kRingToTurn);
    }
  }

  void plan(Nanos at) {
    at = std::max({at, free_at_, world_.now()});
    if (dead_ || at >= due_) return;
    due_ = at;
    world_.at(at, [weak = weak_from_this(), at] {
      const auto lane = weak.lock();
      if (lane && lane->due_ == at) lane->turn();
    });
  }

  void turn() {
    due_ = kNever;
    const auto self = shared_from_this();  // a callback may drop the group
    if (dead_ || world_.paused(segment_->ranks()[params_.self])) return;
    core_.disarm();
    for (Post& post : std::exchange(posts_, {})) core_.post(std::move(post));
    for (const Status& why : std::exchange(failures_, {})) core_.fail(why, params_.self);
    bool more = core_.progress(true);
    const Nanos at = now();
    if (!core_.idle() && at - looked_ >= kHostTick) watch(at);
    deliver();
    serve_closing(at);
    free_at_ = world_.now() + kHostTurn +
               static_cast<Nanos>(static_cast<double>(std::exchange(read_, 0)) * 1e9 / kCopyRate);
    more = more || !posts_.empty() || !failures_.empty();
    if (!more && !core_.idle()) more = !core_.arm(HostWaiter::kThread);
    if (more) return plan(free_at_);
    if (!core_.idle()) plan(world_.now() + kHostTick);
    for (const Closing& c : closings_) plan(world_.now() + std::max(kHostTick, c.deadline - at));
  }

  void watch(Nanos at) {
    const Nanos gap = std::min(at - looked_, 2 * kHostTick);
    looked_ = at;
    std::vector<Member> unresponsive;
    const std::vector<Member> awaited = core_.awaited();
    for (Member m = 0; m < params_.size; m++) {
      const bool waits = std::find(awaited.begin(), awaited.end(), m) != awaited.end();
      const uint32_t rank = segment_->ranks()[m];
      if (waits && world_.killed(rank)) {
        core_.check({});  // the peer may have left in order
        return core_.fail(
            Status(Code::kPeerLost, "rank " + std::to_string(m) + ": its process has ended"), m);
      }
      silent_[m] = waits && world_.paused(rank) ? silent_[m] + gap : 0;
      if (silent_[m] >= liveness_limit_) {
        return core_.fail(Status(Code::kPeerLost, "rank " + std::to_string(m) + " is silent"), m);
      }
      if (silent_[m] >= kSecond) unresponsive.push_back(m);
    }
    core_.check(unresponsive);
  }

  void deliver() {
    if (!told_ && !core_.failure().ok()) {
      told_ = true;
      on_failure_(core_.failure());
    }
    core_.deliver();
  }

  void serve_closing(Nanos at) {
    if (closings_.empty()) return;
    const Closing& first = closings_.front();
    if (!core_.may_leave(first.force, at >= first.deadline, closing_outcome_)) return;
    deliver();
    core_.leave();
    for (Closing& c : std::exchange(closings_, {})) c.done(closing_outcome_);
  }

  const HostParams params_;
  const Nanos liveness_limit_;
  Surroundings& world_;
  const std::shared_ptr<SimSegment> segment_;
  const std::function<Nanos()> clock_;
  const std::function<void(const Status&)> on_failure_;
  std::vector<Post> posts_;
  std::vector<Status> failures_;
  std::vector<Closing> closings_;
  std::vector<Nanos> silent_;  // by member: for how long it has been silent
  Status closing_outcome_;
  Nanos due_ = kNever, free_at_ = 0, looked_ = 0;
  size_t read_ = 0;  // bytes of peers' memory read in this turn
  bool told_ = false, dead_ = false;
  HostCore core_;
};

SimSegment::SimSegment(std::vector<uint32_t> ranks)
    : ranks_(std::move(ranks)),
      memory_((ControlBlock::bytes(static_cast<uint32_t>(ranks_.size())) + 64) / 8 + 1) {
  const auto at = reinterpret_cast<uintptr_t>(memory_.data());
  base_ = reinterpret_cast<std::byte*>((at + 63) / 64 * 64);
  for (const LaneId lane : kBothLanes) lanes_[lane].resize(ranks_.size());
}

SimHostGroup::SimHostGroup(const GroupSpec& spec, Surroundings& world,
                           const std::shared_ptr<SimSegment>& segment)
    : GroupBase(spec) {
  fixed_.path = "shared memory";
  fixed_.reason = "all ranks are on one host";
  for (const LaneId lane : kBothLanes) {
    HostParams params;
    params.name = name_;
    params.self = rank_;
    params.size = size_;
    params.lane = static_cast<uint8_t>(lane);
    params.fold = fold_order(config_.fold);
    lanes_[lane] = std::make_shared<SimHostLane>(
        params, config_.liveness_limit, world, segment, spec.clock, *counters_[lane],
        [state = state_](const Status& why) { state->note_failure(why); });
    segment->lanes_[lane][rank_] = lanes_[lane];
  }
}

SimHostGroup::~SimHostGroup() { kill(); }

void SimHostGroup::kill() {
  for (const LaneId lane : kBothLanes) lanes_[lane]->kill();
}

void SimHostGroup::look_again() {
  for (const LaneId lane : kBothLanes) lanes_[lane]->look_again();
}

Status SimHostGroup::push(LaneId lane, Post post) {
  lanes_[lane]->enqueue(std::move(post));
  return {};
}

std::function<void()> SimHostGroup::waker() const {
  return [lanes = std::array{std::weak_ptr(lanes_.multicast), std::weak_ptr(lanes_.reduce)}] {
    for (const auto& weak : lanes) {
      if (const auto lane = weak.lock()) lane->look_again();
    }
  };
}

void SimHostGroup::fail_lanes(const Status& why) {
  for (const LaneId lane : kBothLanes) lanes_[lane]->fail(why);
}

void SimHostGroup::close_lanes(Nanos deadline, bool force, Completion closed) {
  const Completion left = after_both_lanes(std::move(closed));
  for (const LaneId lane : kBothLanes) lanes_[lane]->close(deadline, force, left);
}

}  // namespace mcast::sim
