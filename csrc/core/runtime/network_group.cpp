// A group on its two lanes once it is open (network_open.cpp): posts go to the lane's queue, or to
// the parts of a split; stats() queries both lanes.
#include "runtime/network_group.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace mcast {
namespace {

// Wait for a more specific error before reporting that a part failed.
constexpr Nanos kWordPatience = 2 * kSecond;

void add_guard(SecurityStats& stats, crypto::DatagramGuard& guard) {
  stats.sealed += guard.seal_key().sealed();
  stats.opened += guard.opened();
  stats.epoch = std::max(stats.epoch, guard.seal_key().epoch());
}

}  // namespace

NetworkGroup::NetworkGroup(const GroupSpec& spec, NetworkGroupParts parts)
    : GroupBase(spec), creation_limit_(spec.timeout), parts_(std::move(parts)) {
  trace_ = parts_.trace;
  fixed_.transport_reason = parts_.transport_reason;
  fixed_.security = parts_.security;
  if (parts_.lanes.multicast != nullptr) fixed_.transport = parts_.lanes.multicast->description();
}

NetworkGroup::~NetworkGroup() {
  const Status status = close_with_linger();
  if (!status.ok()) log(LogLevel::kInfo, "group '%s': %s", name_.c_str(), status.message().c_str());
  if (!here()) return;  // the lock may have been held when the process forked
  std::lock_guard<std::mutex> lock(holder_->mutex);
  holder_->split = nullptr;
}

void NetworkGroup::split(std::unique_ptr<Split> how) {
  split_ = std::move(how);
  fixed_.streams = split_->streams_text();
  std::lock_guard<std::mutex> lock(holder_->mutex);
  holder_->split = split_.get();
}

// This operation only checks that all ranks make the call, and ends it for all; `done` runs when it
// and all parts have ended.
Status NetworkGroup::push_split(Post post) {
  struct Ends {
    std::atomic<int> left{2};
    Status outcome;  // of the operation; the parts affect it only through the operation
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
  if (Status status = push_to_lane(LaneId::kMulticast, std::move(whole)); !status.ok())
    return status;
  const auto on_lane = [weak = std::weak_ptr(parts_.lanes.multicast),
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
    // Our own connections to the lost rank break as well, and their error names that rank.
    const Status full(why.code(), why.message() + (ranks.empty() ? "" : " (" + ranks + ")"));
    on_lane([full](GroupCore& core, Nanos now) { core.fail_later(full, now + kWordPatience); });
  };
  events.ended = [weak = std::weak_ptr(parts_.lanes.multicast), ends] {
    // Not in the posting call, which holds the group's lock.
    const auto lane = weak.lock();
    if (!lane || !lane->push([ends](Lane&, Nanos) { ends->one(); })) ends->one();
  };
  split_->post(std::move(post), std::move(events));
  return {};
}

Status NetworkGroup::push(LaneId lane, Post post) {
  if (lane == LaneId::kMulticast && split_ && split_->carries(post.descriptor)) {
    return push_split(std::move(post));
  }
  return push_to_lane(lane, std::move(post));
}

Status NetworkGroup::push_to_lane(LaneId id, Post post) {
  const auto gone = [name = name_](const char* how, const Post& p) {
    return Status(Code::kClosed, p.descriptor.name + " (sequence " + std::to_string(p.sequence) +
                                     "): group '" + name + "' " + how);
  };
  auto shared = std::make_shared<Post>(std::move(post));
  const bool pushed = parts_.lanes[id]->push([tag = tag_, shared, gone](Lane& lane, Nanos now) {
    LaneGroup* group = lane.find_group(tag);
    if (group != nullptr) {
      group->core().post(std::move(*shared), now);
    } else if (shared->done) {
      shared->done(gone("was closed meanwhile", *shared));
    }
  });
  return pushed ? Status() : gone("ended because the engine is shut down", *shared);
}

// Uses the reduce lane, whose streams do not wait for multicast.
Status NetworkGroup::push_message(MessagePost post) {
  const Status gone(Code::kClosed, std::string(post.receives ? "recv" : "send") + ": group '" +
                                       name_ + "' was closed meanwhile");
  auto shared = std::make_shared<MessagePost>(std::move(post));
  const bool pushed = parts_.lanes.reduce->push([tag = tag_, shared, gone](Lane& lane, Nanos now) {
    if (LaneGroup* const group = lane.find_group(tag)) {
      group->core().post_message(std::move(*shared), now);
    } else if (shared->done) {
      shared->done(gone);
    }
  });
  if (pushed) return {};
  return Status(Code::kClosed, "group '" + name_ + "' ended because the engine is shut down");
}

std::function<void()> NetworkGroup::waker() const {
  return [lanes =
              std::array{std::weak_ptr(parts_.lanes.multicast), std::weak_ptr(parts_.lanes.reduce)},
          parts = split_ ? split_->waker() : std::function<void()>()] {
    for (const auto& weak : lanes) {
      if (const auto lane = weak.lock()) lane->transport().wake();
    }
    if (parts) parts();
  };
}

bool NetworkGroup::has_lanes() const { return parts_.lanes.multicast != nullptr && tag_ != 0; }

void NetworkGroup::fail_lanes(const Status& why) {
  for (const LaneId lane : kBothLanes) {
    parts_.lanes[lane]->push([tag = tag_, why, rank = rank_](Lane& l, Nanos now) {
      if (LaneGroup* group = l.find_group(tag)) group->core().fail(why, rank, now);
    });
  }
}

void NetworkGroup::close_lanes(Nanos deadline, bool force, Completion closed) {
  const Completion left = after_both_lanes(std::move(closed));
  parts_.lanes.multicast->close_group(tag_, deadline, force, left);
  parts_.lanes.reduce->close_group(tag_, deadline, force,
                                   [fold = parts_.fold, left](const Status& status) {
                                     if (fold) fold->leave();
                                     left(status);
                                   });
}

GroupStats NetworkGroup::stats() const {
  GroupStats s = common_stats();
  if (parts_.lanes.multicast == nullptr || !here()) return s;
  if (split_) split_->add_to(s);
  if (config_.partial != 0) s.aggregation.no_partial = fixed_.aggregation.no_partial;
  if (parts_.fold) s.aggregation.aggregators = parts_.fold->stats();
  for (const LaneId lane : kBothLanes) {
    parts_.lanes[lane]->call([&](Lane& l, Nanos now) {
      if (LaneGroup* group = l.find_group(tag_)) {
        if (const auto& guard = group->core().params().multicast.guard)
          add_guard(s.security, *guard);
        if (lane == LaneId::kReduce) s.aggregation.report = group->core().aggregation_report(now);
        const auto& repairs = group->core().repairs();
        for (size_t m = 0; m < repairs.size(); m++) {
          s.repair_from_to[m].first += repairs[m].first;
          s.repair_from_to[m].second += repairs[m].second;
        }
      }
      if (const auto identity = parts_.lanes[lane]->identity()) {
        s.security.untried += identity->budget()->refused();
      }
      // Traffic that could not be attributed to a group is reported by every group of the lane.
      s.security.add(l.monitor());
      s.counters[static_cast<size_t>(Counter::foreign)].second += l.foreign();
      s.counters[static_cast<size_t>(Counter::neighbour)].second += l.neighbour();
      s.counters[static_cast<size_t>(Counter::late)].second += l.late();
      s.counters[static_cast<size_t>(Counter::malformed)].second += l.malformed();
      s.counters[static_cast<size_t>(Counter::fragmented)].second +=
          l.transport().datagram().fragmented();
    });
  }
  return s;
}

}  // namespace mcast
