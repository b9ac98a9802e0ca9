// A lane is driven by one thread at a time: by a caller that waits for a result (no hand-over at
// all), else by the process's host thread, which peers ring. Whoever lets go arms the needs for the
// host thread, and looks once more for what was put into the inbox meanwhile, so that nothing is
// left lying. A peer may ring for these needs before the lane is free: the host thread then finds
// it driven, says so, and is rung again by whoever lets go. A caller that waits sleeps at its own
// bell on the board.
//
// The watch. While something is waited for, a look at the awaited ranks every tick: a dead process
// is seen by its pidfd; what it had published before is taken first. A stopped one does not answer
// questions: its silence adds up over ticks, each counted for no more than two, so that a process
// that was stopped itself does not take the others for silent.
#include "engine/host_lane.h"

#include <algorithm>
#include <thread>

#include "engine/clock.h"
#include "engine/closing.h"
#include "transport/shm/futex.h"

namespace mcast {
namespace {

constexpr Nanos kTick = kHostTick;
constexpr Nanos kSpin = 30 * kMicro;
constexpr Nanos kUnresponsive =
    kSecond;  // without an answer: "has not answered" in a time-out's text

}  // namespace

HostLane::HostLane(HostParams params, Nanos liveness_limit, std::shared_ptr<HostShared> shared,
                   HostHub& hub, std::shared_ptr<Counters> counters,
                   std::function<void(const Status&)> on_failure)
    : params_(params),
      liveness_limit_(liveness_limit),
      shared_(std::move(shared)),
      hub_(hub),
      thread_(hub.thread(params.lane)),
      counters_(std::move(counters)),
      on_failure_(std::move(on_failure)),
      spins_(std::thread::hardware_concurrency() >= params.size),
      core_(std::move(params), shared_->board, *this, *counters_) {
  silence_.resize(params_.size);
}

HostLane::~HostLane() = default;

Nanos HostLane::now() { return monotonic_now(); }

Status HostLane::read(Member from, uint64_t address, std::byte* to, size_t length) {
  thread_.answer();  // the host thread itself may be busy here for long
  return shared_->peers[from]->process.read(address, to, length);
}

void HostLane::wake(Member member, HostWaiter waiter) {
  counters_->add(Counter::shm_wakes);
  ring(waiter == HostWaiter::kCaller ? shared_->board.words(params_.lane, member).doorbell
                                     : shared_->peers[member]->mailbox().bells[params_.lane].rings);
}

void HostLane::wake_all() {
  for (uint32_t m = 0; m < params_.size; m++) {
    for (size_t lane = 0; lane < kHostLanes; lane++) {
      ring(shared_->board.words(lane, static_cast<Member>(m)).doorbell);
      if (m != params_.self) ring(shared_->peers[m]->mailbox().bells[lane].rings);
    }
  }
  for (size_t lane = 0; lane < kHostLanes; lane++) hub_.thread(lane).ring();
}

void HostLane::enqueue(Post post) {
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  inbox_.push_back(std::move(post));
  mail_.store(true, std::memory_order_seq_cst);
}

void HostLane::fail(const Status& why, Member culprit) {
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    failures_.emplace_back(why, culprit);
    mail_.store(true, std::memory_order_seq_cst);
  }
  run();
}

void HostLane::close(Nanos deadline, bool force, Closed done) {
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    leaving_.push_back({deadline, force, std::move(done)});
    mail_.store(true, std::memory_order_seq_cst);
  }
  ring_driver();
  thread_.ring();
}

void HostLane::look_again() {
  // As mail: a driver that has looked already, and a host thread that is about to sleep, see it.
  mail_.store(true, std::memory_order_seq_cst);
  run();
}

// A driver may be asleep at the bell.
void HostLane::ring_driver() { ring(shared_->board.words(params_.lane, params_.self).doorbell); }

// A driver's view of the inbox, in the order: what was posted before a failure fails with it.
void HostLane::drain() {
  if (!mail_.load(std::memory_order_seq_cst)) return;
  std::vector<std::pair<Status, Member>> failures;
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    posts_.swap(inbox_);
    failures.swap(failures_);
    for (Closing& c : leaving_) closing_.push_back(std::move(c));
    leaving_.clear();
    // Read as well: what came before a look_again() that this swallows is then seen below.
    (void)mail_.exchange(false, std::memory_order_seq_cst);
  }
  for (Post& p : posts_) core_.post(std::move(p));
  posts_.clear();
  for (const auto& [why, culprit] : failures) core_.fail(why, culprit);
}

void HostLane::look_at_failure() {
  if (told_ || core_.failure().ok()) return;
  told_ = true;
  on_failure_(core_.failure());
}

void HostLane::advance(bool large, bool& left_over) {
  drain();
  left_over = core_.progress(large);
  const Nanos at = now();
  if (!core_.idle() && at - watched_ >= kTick) watch(at);
  look_at_failure();
  serve_closing(at);
}

// Lets go of the lane; `left_over`: something large could be done at once. What is in flight is
// left to the host thread, which must not be asleep for good then, whoever has posted it.
void HostLane::unlock_armed(bool left_over) {
  bool ring = left_over, busy = false;
  for (;;) {
    ring = ring || !closing_.empty();
    busy = !core_.idle();
    // Whatever was missed until here, arming sees.
    refused_.store(false, std::memory_order_seq_cst);
    if (busy && !ring) ring = !core_.arm(HostWaiter::kThread);
    letting_go();
    driven_.store(false, std::memory_order_seq_cst);
    ring = ring || refused_.load(std::memory_order_seq_cst);
    if (!mail_.load(std::memory_order_seq_cst) || !try_lock()) break;
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

void HostLane::run() {
  if (!try_lock()) {
    ring_driver();
    return;
  }
  core_.disarm();
  bool left_over = false;
  advance(false, left_over);
  unlock_armed(left_over);
}

bool HostLane::help(const std::function<bool()>& done, Nanos until) {
  if (!try_lock()) return false;
  auto& bell = shared_->board.words(params_.lane, params_.self).doorbell;
  core_.disarm();
  Nanos spin_until = 0;
  bool left_over = false, driving = true;
  for (;;) {
    const uint32_t seen = bell.load(std::memory_order_seq_cst);
    advance(true, left_over);
    if (done()) break;
    const Nanos at = now();
    if (at >= until) break;
    if (core_.idle()) {  // what is waited for is not up to this lane
      driving = false;
      break;
    }
    if (left_over) continue;
    if (spins_) {
      if (spin_until == 0) spin_until = at + kSpin;
      if (at < spin_until) continue;
    }
    if (!core_.arm(HostWaiter::kCaller)) continue;
    if (!mail_.load(std::memory_order_seq_cst)) {
      counters_->add(Counter::shm_sleeps);
      futex_wait(bell, seen, std::min(until, watched_ + kTick) - at);
      spin_until = 0;
    }
    core_.disarm();
  }
  unlock_armed(left_over);
  return driving;
}

Nanos HostLane::turn() {
  if (!try_lock()) {
    refused_.store(true, std::memory_order_seq_cst);
    // Either the driver sees that after it has let go, or it had let go before.
    if (!try_lock()) return now() + kTick;
  }
  core_.disarm();
  bool left_over = false;
  advance(true, left_over);
  Nanos next = kNever;
  if (!core_.idle()) next = watched_ + kTick;  // limits are looked at then
  for (const Closing& c : closing_) {
    if (c.deadline > now()) next = std::min(next, c.deadline);
  }
  const bool ring = left_over || (!core_.idle() && !core_.arm(HostWaiter::kThread));
  driven_.store(false, std::memory_order_seq_cst);
  return ring || mail_.load(std::memory_order_seq_cst) ? now() : next;
}

void HostLane::serve_closing(Nanos at) {
  if (closing_.empty()) return;
  const bool idle = core_.idle();
  const Nanos deadline = closing_.front().deadline;
  const bool force = closing_.front().force;
  if (!idle && !force && at < deadline) return;
  if (!idle && closing_outcome_.ok()) {
    const LeftInFlight left = left_in_flight(params_.self, core_.in_flight(), force);
    closing_outcome_ = left.here.with_context(core_.oldest_text());
    core_.fail(left.elsewhere, params_.self);
  }
  // Another rank is just writing its notice: ours end with that, and must not be left behind.
  if (!core_.idle()) return;
  look_at_failure();
  core_.leave();
  for (Closing& c : std::exchange(closing_, {})) c.done(closing_outcome_);
}

void HostLane::watch(Nanos at) {
  const Nanos gap = std::min(at - watched_, 2 * kTick);
  watched_ = at;
  const std::vector<Member> awaited = core_.awaited();
  std::vector<Member> unresponsive;
  const Nanos interval = std::clamp<Nanos>(liveness_limit_ / 8, kTick, 2 * kSecond);
  for (uint32_t i = 0; i < params_.size; i++) {
    if (std::find(awaited.begin(), awaited.end(), i) == awaited.end()) silence_[i] = {};
  }
  for (const Member m : awaited) {
    const HostPeer& peer = *shared_->peers[m];
    if (!peer.process.alive()) {
      // What it did before it ended counts.
      core_.progress(true);
      const std::vector<Member> still = core_.awaited();
      if (std::find(still.begin(), still.end(), m) == still.end()) continue;
      core_.check({});  // it may have left in order
      return core_.fail(peer.ended(m), m);
    }
    Silence& s = silence_[m];
    const bool open = !peer.answered(s.asked);
    s.total = open ? s.total + gap : 0;
    if (s.total >= liveness_limit_) {
      return core_.fail(HostPeer::silent(m, s.total, liveness_limit_), m);
    }
    if (s.total >= kUnresponsive) unresponsive.push_back(m);
    if (at - s.at >= interval) {
      // One question at a time; its host thread is rung for it again and again.
      if (open) {
        ring(peer.mailbox().bells[0].rings);
      } else {
        s.asked = peer.ask();
      }
      s.at = at;
      counters_->add(Counter::pings_sent);
    }
  }
  core_.check(unresponsive);
}

}  // namespace mcast
