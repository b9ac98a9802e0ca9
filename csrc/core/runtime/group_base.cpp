// Common behaviour of all groups: refusing posts, closing, and the parts of stats() that do not
// come from the lanes. Each function calls here() before it takes the lock: in the child of a fork
// the thread that held it does not exist.
#include "runtime/group_base.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/errors.h"
#include "base/own_pid.h"

namespace mcast {
namespace {
// Interval at which a waiting thread checks for a reason to stop.
constexpr auto kLook = std::chrono::milliseconds(200);

}  // namespace

GroupBase::GroupBase(const GroupSpec& spec)
    : name_(spec.name),
      rank_(spec.rank),
      size_(spec.size),
      config_(spec.config),
      clock_(spec.clock),
      pid_(own_pid()) {
  fixed_.name = name_;
  fixed_.path = "local";
  fixed_.reason = "one rank";
  fixed_.transport = "none";
  fixed_.fold = config_.fold;
  fixed_.eager = config_.eager;
}

bool GroupBase::here() const { return own_pid() == pid_; }

Result<std::unique_lock<std::mutex>> GroupBase::enter(const std::string& op) const {
  if (!here()) {
    return Status(Code::kClosed, op + ": " + error_text<ErrorId::group_of_parent>(name_) +
                                     "; make a new group after fork");
  }
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (const Status failure = state_->failure(); !failure.ok()) {
    return Status(failure.code(), op + ": group '" + name_ +
                                      "' failed earlier and cannot be used: " + failure.message() +
                                      "; destroy it and make a new one");
  }
  if (state_->closed) return make_error<ErrorId::group_closed>(name_).with_context(op);
  return lock;
}

Status Group::post_message(MessageCall, PostOptions options) {
  return Status(Code::kUnavailable, std::string(options.label.name.c_str()) +
                                        ": a group of this kind does not support send and recv");
}

Status Group::maps_pool() {
  return Status(Code::kUnavailable,
                "no engine of the host runs this group (MCAST_ENGINE=host), and only an engine "
                "would use this memory");
}

Status GroupBase::push_message(MessagePost) {
  return Status(Code::kUnavailable, "group '" + name_ + "' does not support send and recv");
}

Status GroupBase::post_message(MessageCall call, PostOptions options) {
  const char* const kind = call.receives ? "recv" : "send";
  const std::string op = options.label.name.or_else(kind);
  const bool any = call.receives && call.peer == kNoMember;
  if (!any && (call.peer >= size_ || call.peer == rank_)) {
    return Status(Code::kInvalidArgument, op + ": rank " + std::to_string(call.peer) +
                                              " is not another rank of group '" + name_ +
                                              "' (size " + std::to_string(size_) + ")");
  }
  MessagePost post;
  post.receives = call.receives;
  post.peer = call.peer;
  post.tag = call.tag;
  post.memory = std::move(call.memory);
  post.posted = now();
  post.timeout = options.timeout;
  post.source = std::move(call.source);
  post.done = std::move(options.done);
  if (call.receives && options.on_completed) {
    post.completed_step = options.completed_step;
    post.on_completed = [on_completed = std::move(options.on_completed)](uint64_t bytes) {
      on_completed(0, bytes);
    };
  }
  auto lock = enter(op);
  if (!lock.ok()) return lock.status();
  if (Status status = push_message(std::move(post)); !status.ok()) return status;
  lock->unlock();
  pushed_message();
  return {};
}

void GroupBase::abort(const std::string& reason) {
  fail_part(make_error<ErrorId::aborted>(rank_, reason));
}

void GroupBase::fail_part(const Status& why) {
  if (!here()) return;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->closed || !state_->note_failure(why)) return;
  }
  fail_in_flight(why);
}

void GroupBase::fail_in_flight(const Status& why) {
  if (!here() || !has_lanes()) return;
  fail_lanes(why);
}

Completion GroupBase::after_both_lanes(Completion then) {
  struct Both {
    std::mutex mutex;
    size_t left = kLanes;
    Status first;
    Completion then;
  };
  auto both = std::make_shared<Both>();
  both->then = std::move(then);
  return [both](const Status& status) {
    {
      std::lock_guard<std::mutex> lock(both->mutex);
      if (both->first.ok()) both->first = status;
      if (--both->left > 0) return;
    }
    if (both->then) both->then(both->first);
  };
}

std::future<Status> GroupBase::start_close(Nanos limit, bool force) {
  auto result = std::make_shared<std::promise<Status>>();
  std::future<Status> future = result->get_future();
  begin_close(limit, force, [result](const Status& status) { result->set_value(status); });
  return future;
}

void GroupBase::begin_close(Nanos limit, bool force, Completion then) {
  bool again = true, intact = false;
  if (here()) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    again = std::exchange(state_->closed, true);
    intact = state_->failure().ok();
  }
  // A caller may stop waiting for a close: a second one by force ends the first.
  if (!here() || !has_lanes() || (again && !force)) return then({});
  close_lanes(later(now(), limit), force,
              [then = std::move(then), look = intact, state = state_](const Status& status) {
                // Operations that were in flight or unconfirmed may have failed by another rank's
                // report.
                then(status.ok() && look ? state->failure() : status);
              });
}

bool GroupBase::await_close(const std::future<Status>& closed, const std::function<bool()>& hurry) {
  while (closed.wait_for(kLook) != std::future_status::ready) {
    if (hurry && hurry()) return false;
  }
  return true;
}

Status GroupBase::close_in_order(const std::function<bool()>& hurry) {
  std::future<Status> future = start_close(kNever, false);
  return await_close(future, hurry) ? future.get() : close(config_.linger, true);
}

Status GroupBase::close(Nanos limit, bool force) {
  std::future<Status> future = start_close(limit, force);
  // The lane replies by the deadline; the margin only covers a lane that is being stopped.
  const Nanos margin = std::min<Nanos>(limit, 86400 * kSecond) + 10 * kSecond;
  if (future.wait_for(std::chrono::nanoseconds(margin)) != std::future_status::ready) {
    return Status(Code::kTimeout, "the lanes of group '" + name_ + "' have not answered for " +
                                      seconds_text(margin));
  }
  return future.get();
}

void SecurityStats::add(const Monitor& monitor) {
  sources_watched = sources_watched || monitor.watches();
  for (size_t i = 0; i < kCauses; i++) causes[i] += monitor.count(static_cast<Cause>(i));
  for (const SourceTable::Row& row : monitor.top(kMostSources)) {
    const std::string address = row.source.host_text();
    auto at = std::find_if(sources.begin(), sources.end(),
                           [&](const SourceRow& r) { return r.address == address; });
    if (at == sources.end()) at = sources.insert(at, SourceRow{address, 0, 0, {}});
    at->refused += row.total;
    at->inherited += row.inherited;
    for (size_t i = 0; i < kCauses; i++) at->causes[i] += row.causes[i];
  }
  std::stable_sort(sources.begin(), sources.end(),
                   [](const SourceRow& a, const SourceRow& b) { return a.refused > b.refused; });
  if (sources.size() > kMostSources) sources.resize(kMostSources);
}

GroupStats GroupBase::common_stats() const {
  GroupStats s = fixed_;
  s.security.mode = config_.security;
  s.aggregation.no_partial = config_.partial == 0 ? "off" : "all ranks are on one host";
  if (here()) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->path.empty()) {
      s.path = state_->path;
      s.reason = state_->reason;
    }
    s.next_sequence.multicast = state_->next.multicast;
    s.next_sequence.reduce = state_->next.reduce;
    s.failure = state_->failure().message();
  }
  s.counters.reserve(kCounterCount);
  for (size_t i = 0; i < kCounterCount; i++) {
    const auto c = static_cast<Counter>(i);
    s.reduce_counters.push_back(counters_.reduce->get(c));
    s.counters.emplace_back(counter_name(c),
                            counters_.multicast->get(c) + s.reduce_counters.back());
  }
  s.repair_from_to.resize(size_);
  return s;
}

}  // namespace mcast
