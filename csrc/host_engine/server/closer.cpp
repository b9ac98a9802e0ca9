// All groups begin to close immediately, so that the time limits of many do not add up; lanes
// report when one is over. Then the thread waits until the outputs that it has completed are
// copied, and notifies the client. When all clients are notified it destroys groups, which may wait
// for the groups of which they are made.
//
// A lane replies by the deadline of a close. If it does not, it is being stopped, or stuck: the
// group then counts as closed after a margin.
#include "host_engine/server/closer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "daemon/start_thread.h"

namespace mcast::service {
namespace {

constexpr Nanos kSettle = 10 * kSecond;      // for copies, after the end of the group
constexpr Nanos kLaneMargin = 10 * kSecond;  // for a lane's reply, after the deadline
constexpr auto kCloserLook = std::chrono::seconds(1);
// Equal to the longest setting `linger`: a client that asks for more only tries to keep the engine
// busy.
constexpr Nanos kMostClose = 86'400 * kSecond;

}  // namespace

Status Closer::start() {
  return start_thread(thread_, "mcast-close", [this] { run(); });
}

Closer::~Closer() {
  {
    const std::lock_guard<std::mutex> held(state_->mutex);
    state_->stopping = true;
  }
  state_->news.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Closer::close(std::shared_ptr<TenantGroup> group, uint64_t call, const ipc::Close& how,
                   std::shared_ptr<Mover> mover) {
  const Nanos limit = std::clamp<Nanos>(how.limit, 0, kMostClose);
  const uint32_t handle = group->handle();
  const auto base = group->shared();
  {
    const std::lock_guard<std::mutex> held(state_->mutex);
    One& one = state_->closing[handle];
    one.group = std::move(group);
    one.mover = std::move(mover);
    one.call = call;
    one.end = monotonic_now() + limit;
  }
  base->begin_close(limit, how.force, [state = state_, handle](const Status& outcome) {
    {
      const std::lock_guard<std::mutex> held(state->mutex);
      const auto it = state->closing.find(handle);
      if (it == state->closing.end() || it->second.over) return;
      it->second.over = true;
      it->second.outcome = outcome;
    }
    state->news.notify_all();
  });
}

std::shared_ptr<TenantGroup> Closer::find(uint32_t handle) const {
  const std::lock_guard<std::mutex> held(state_->mutex);
  const auto it = state_->closing.find(handle);
  return it == state_->closing.end() ? nullptr : it->second.group;
}

size_t Closer::open() const {
  const std::lock_guard<std::mutex> held(state_->mutex);
  return static_cast<size_t>(std::count_if(state_->closing.begin(), state_->closing.end(),
                                           [](const auto& entry) { return !entry.second.told; }));
}

size_t Closer::size() const {
  const std::lock_guard<std::mutex> held(state_->mutex);
  return state_->closing.size();
}

// Called without a lock: a group that is notified runs its lanes' callbacks here, including ours.
void Closer::lose(const std::string& why) {
  std::vector<std::shared_ptr<TenantGroup>> left;
  {
    const std::lock_guard<std::mutex> held(state_->mutex);
    for (const auto& [handle, one] : state_->closing) {
      if (!one.over) left.push_back(one.group);
    }
  }
  for (const auto& group : left) group->lose_closing(why);
}

bool Closer::wait(Nanos patience) {
  std::unique_lock<std::mutex> held(state_->mutex);
  return state_->news.wait_for(held, std::chrono::nanoseconds(patience),
                               [this] { return state_->closing.empty(); });
}

// Returns a group whose client can be notified, or one to be destroyed; null if there is none yet.
// Groups that cannot be delayed come first.
Closer::One* Closer::next() {
  const Nanos now = monotonic_now();
  One* to_settle = nullptr;
  One* to_destroy = nullptr;
  for (auto& [handle, one] : state_->closing) {
    if (!one.over) {
      if (now < one.end + kLaneMargin && !state_->stopping) continue;
      one.over = true;
      one.outcome =
          Status(Code::kTimeout, "the lanes of group '" + one.group->name() +
                                     "' have not answered for " + seconds_text(kLaneMargin));
    }
    if (!one.told && !one.mover) return &one;
    (one.told ? to_destroy : to_settle) = &one;
  }
  return to_settle != nullptr ? to_settle : to_destroy;
}

void Closer::finish(const One& one) {
  const uint32_t handle = one.group->handle();
  // Completed outputs are copied before the end is reported.
  if (one.mover) one.mover->settle(handle, std::max(one.end, monotonic_now() + kSettle));
  {
    // Before the client is notified, because it may then ask for the next group.
    const std::lock_guard<std::mutex> held(state_->mutex);
    state_->closing.at(handle).told = true;
  }
  if (one.call == 0) return;
  try {
    link_->tell(control_of(ipc::ControlType::kClosed, one.call, ipc::Verdict::of(one.outcome)));
  } catch (const std::exception&) {
    link_->fail(TenantLink::kExhausted);
  }
}

void Closer::run() {
  std::unique_lock<std::mutex> held(state_->mutex);
  while (!state_->stopping || !state_->closing.empty()) {
    One* const found = next();
    if (found == nullptr) {
      state_->news.wait_for(held, kCloserLook);
      continue;
    }
    const uint32_t handle = found->group->handle();
    if (!found->told) {
      held.unlock();
      finish(*found);  // it stays valid: no other thread removes it
      held.lock();
      continue;
    }
    std::shared_ptr<TenantGroup> group = std::move(found->group);
    found->mover.reset();
    found->group.reset();
    held.unlock();
    group.reset();  // may wait
    held.lock();
    state_->closing.erase(handle);
    state_->news.notify_all();
  }
}

}  // namespace mcast::service
