// One thread at a time drives a lane: a caller that waits for a result (without any hand-over),
// else the process's host thread, which peers wake. A driver that lets go registers the needs for
// the host thread, and checks the inbox once more, so that no mail is left unread. A peer may ring
// for these needs before the lane is free: the host thread then finds it driven, sets `refused_`,
// and is rung again by the driver that lets go. A waiting caller sleeps at its own bell in the
// control block.
//
// A thread that posts an operation and waits for it next arms nothing in between: it would be gone
// for microseconds only, and waking the host thread costs more than that.
//
// While something is waited for, a look at the awaited ranks every tick: a dead process is seen by
// its pidfd; what it had published before is taken first. A stopped one is silent (peer_watch.h).
//
// Only a caller that waits spins or yields before it sleeps (base/patience.h). Host threads sleep
// at once: yielding host threads keep callers from the cores, and everything was slower.
#include "shm/lane.h"

#include <sched.h>

#include <algorithm>

#include "shm/arena_pool.h"
#include "shm/futex.h"

namespace mcast {
namespace {

constexpr Nanos kNewsPatience = 5 * kSecond;

}  // namespace

HostLane::HostLane(HostParams params, Nanos liveness_limit, Patience patience,
                   std::shared_ptr<HostShared> shared, PeerRegistry& registry,
                   std::shared_ptr<Counters> counters,
                   std::function<void(const Status&)> on_failure)
    : params_(params),
      shared_(std::move(shared)),
      registry_(registry),
      thread_(registry.thread(params.lane)),
      clock_(registry.clock()),
      counters_(std::move(counters)),
      held_(params_.size),
      on_failure_(std::move(on_failure)),
      core_(std::move(params), shared_->block, *this, *counters_),
      watch_(params_.size, liveness_limit, *counters_),
      patience_(patience) {}

HostLane::~HostLane() = default;

uint64_t HostLane::place_of(const Slice& slice) {
  if (shared_->own) {
    shared_->own->add(slice.region);
    return kInArena | HostPort::place_of(slice);
  }
  const ArenaPool* const pool =
      params_.memory == PeerMemory::kMapped ? ArenaPool::of_process() : nullptr;
  if (pool != nullptr) {
    if (const auto at = pool->offset_of(slice.data(), slice.length)) return kInArena | *at;
  }
  return HostPort::place_of(slice);
}

Status HostLane::read(Member from, uint64_t place, std::byte* to, size_t length) {
  thread_.answer();  // the host thread itself may be busy here for long
  if (shared_->own) {
    return Status(Code::kPeerLost, "the data that it published at its engine is gone");
  }
  return shared_->peers[from]->process.read(place, to, length);
}

const std::byte* HostLane::map(Member from, uint64_t place, size_t length) {
  if ((place & kInArena) == 0) return nullptr;
  thread_.answer();
  if (shared_->own) {
    held_[from] = shared_->theirs[from]->find(place & ~kInArena, length);
    return held_[from] ? reinterpret_cast<const std::byte*>(place & ~kInArena) : nullptr;
  }
  const Segment& arena = shared_->peers[from]->arena;
  const uint64_t at = place & ~kInArena;
  return at <= arena.size() && length <= arena.size() - at ? arena.data() + at : nullptr;
}

void HostLane::wake(Member member, HostWaiter waiter) {
  counters_->add(Counter::shm_wakes);
  ring(waiter == HostWaiter::kCaller ? shared_->block.state(params_.lane, member).doorbell
                                     : shared_->peers[member]->mailbox().bells[params_.lane].rings);
}

void HostLane::wake_all() {
  for (uint32_t m = 0; m < params_.size; m++) {
    for (size_t lane = 0; lane < kHostLanes; lane++) {
      ring(shared_->block.state(lane, static_cast<Member>(m)).doorbell);
      if (m != params_.self) ring(shared_->peers[m]->mailbox().bells[lane].rings);
    }
  }
  for (size_t lane = 0; lane < kHostLanes; lane++) registry_.thread(lane).ring();
}

void HostLane::enqueue(Post post) { inbox_.put(std::move(post)); }

void HostLane::enqueue(MessagePost post) { inbox_.put(std::move(post)); }

void HostLane::fail(const Status& why, Member culprit) {
  inbox_.put(why, culprit);
  run();
}

void HostLane::close(Nanos deadline, bool force, Closed done) {
  inbox_.put(LaneInbox::Closing{deadline, force, std::move(done)});
  ring_driver();
  thread_.ring();
}

void HostLane::look_again() {
  // Like mail: seen by a driver that has looked already, and by a host thread that is about to
  // sleep.
  inbox_.knock();
  run();
}

// Wakes the driver, which may be asleep at the bell.
void HostLane::ring_driver() { ring(shared_->block.state(params_.lane, params_.self).doorbell); }

// Keeps the order of the inbox: operations posted before a failure fail with it.
void HostLane::drain() {
  if (!inbox_.take(mail_)) return;
  for (Post& p : mail_.posts) core_.post(std::move(p));
  mail_.posts.clear();
  for (MessagePost& p : mail_.messages) core_.post_message(std::move(p));
  mail_.messages.clear();
  for (const auto& [why, culprit] : mail_.failures) core_.fail(why, culprit);
  mail_.failures.clear();
}

// Delivers the results of the turn; the group refuses posts before any callback reports its
// failure.
void HostLane::deliver() {
  if (!told_ && !core_.failure().ok()) {
    told_ = true;
    on_failure_(core_.failure());
  }
  core_.deliver();
}

void HostLane::advance(bool large, bool& left_over) {
  drain();
  left_over = core_.progress(large);
  for (auto& hold : held_) hold.reset();
  const Nanos at = now();
  if (!core_.idle() && at - watch_.looked() >= kHostTick) watch(at);
  deliver();
  serve_closing(at);
}

// Lets go of the lane; `left_over`: something large could be done at once. What is in flight is
// left to `next`. The host thread must not be asleep for good then, whoever has posted it.
void HostLane::unlock(bool left_over, Next next) {
  bool ring = left_over && next == Next::kThread, busy = false;
  for (;;) {
    ring = ring || !mail_.closings.empty();
    busy = !core_.idle();
    // Arming detects everything that was missed until here.
    refused_.store(false, std::memory_order_seq_cst);
    const bool arms = next == Next::kThread;
    if (busy && !ring && arms) ring = !core_.arm(HostWaiter::kThread);
    letting_go();
    driven_.store(false, std::memory_order_seq_cst);
    ring = ring || (arms && refused_.load(std::memory_order_seq_cst));
    if (!inbox_.has_mail() || !try_lock()) break;
    next = Next::kThread;  // who put it there relies on this thread, and may not wait
    core_.disarm();
    bool more = false;
    advance(false, more);
    ring = ring || more;
  }
  if (ring) {
    thread_.ring();
  } else if (busy) {
    thread_.warm_up();
  }
}

void HostLane::run(std::optional<Sequence> awaited) noexcept {
  if (!try_lock()) {
    ring_driver();
    return;
  }
  core_.disarm();
  bool left_over = false;
  advance(false, left_over);
  // (Where it is over already, nobody comes for earlier messages, or for what others have posted.)
  unlock(left_over, awaited && core_.newest() == awaited ? Next::kCaller : Next::kThread);
}

void HostLane::yield_core() { (void)::sched_yield(); }

// The last look found nothing. False: it is time for another one, maybe after a yield.
bool HostLane::sleeps_next(Nanos at) {
  const auto [step, news] = patience_.next(at, core_.moves(), registry_.core_each());
  if (news == Patience::News::kYields) counters_->add(Counter::waits_yielded);
  if (news == Patience::News::kBraked) counters_->add(Counter::waits_braked);
  if (step == Patience::Step::kYield) {
    const Nanos before = now();
    yield_core();
    const Nanos after = now();
    patience_.on_yield(after, after - before);
  }
  return step == Patience::Step::kSleep;
}

bool HostLane::help(const std::function<bool()>& done, Nanos until) noexcept {
  if (!try_lock()) return false;
  auto& bell = shared_->block.state(params_.lane, params_.self).doorbell;
  core_.disarm();
  bool left_over = false, driving = true;
  for (;;) {
    const uint32_t seen = bell.load(std::memory_order_seq_cst);
    advance(true, left_over);
    if (done()) break;
    const Nanos at = now();
    if (at >= until) break;
    if (core_.idle()) {  // the caller's event does not depend on this lane
      driving = false;
      break;
    }
    if (left_over || !sleeps_next(at)) continue;
    if (!core_.arm(HostWaiter::kCaller)) continue;
    if (!inbox_.has_mail()) {
      counters_->add(Counter::shm_sleeps);
      futex_wait(bell, seen, std::min(until, watch_.looked() + kHostTick) - at);
      patience_.end();
    }
    core_.disarm();
  }
  patience_.end();
  unlock(left_over, Next::kThread);
  return driving;
}

Nanos HostLane::turn() {
  if (!try_lock()) {
    refused_.store(true, std::memory_order_seq_cst);
    // Either the driver sees `refused_` after it has let go, or it had let go before.
    if (!try_lock()) return now() + kHostTick;
  }
  core_.disarm();
  bool left_over = false;
  advance(true, left_over);
  Nanos next = kNever;
  if (!core_.idle()) next = watch_.looked() + kHostTick;  // time limits are checked then
  for (const LaneInbox::Closing& c : mail_.closings) {
    if (c.deadline > now()) next = std::min(next, c.deadline);
  }
  const bool ring = left_over || (!core_.idle() && !core_.arm(HostWaiter::kThread));
  driven_.store(false, std::memory_order_seq_cst);
  return ring || inbox_.has_mail() ? now() : next;
}

void HostLane::serve_closing(Nanos at) {
  if (mail_.closings.empty()) return;
  bool force = false, late = false;
  for (const LaneInbox::Closing& c : mail_.closings) {
    force = force || c.force;
    late = late || at >= c.deadline;
  }
  const bool only_news = !core_.idle() && core_.in_flight() == 0;
  // Notifications that the receiver does not read are waited for less long than operations.
  news_until_ = only_news ? std::min(news_until_, at + kNewsPatience) : kNever;
  if (!core_.may_leave(force, late || at >= news_until_, closing_outcome_)) return;
  deliver();
  core_.leave();
  for (LaneInbox::Closing& c : std::exchange(mail_.closings, {})) c.done(closing_outcome_);
}

void HostLane::watch(Nanos at) {
  const std::vector<Member> awaited = core_.awaited();
  watch_.begin(at, awaited);
  for (const Member m : awaited) {
    const HostPeer& peer = *shared_->peers[m];
    if (!peer.process.alive()) {
      // Takes the data that it published before it ended.
      core_.progress(true);
      core_.check({});  // it may have left in order
      const std::vector<Member> still = core_.awaited();
      if (std::find(still.begin(), still.end(), m) == still.end()) continue;
      return core_.fail(peer.ended(m), m);
    }
    if (Status silent = watch_.look_at(m, peer); !silent.ok()) return core_.fail(silent, m);
  }
  core_.check(watch_.unresponsive());
}

}  // namespace mcast
