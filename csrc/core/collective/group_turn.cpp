// progress(): sends as much as possible, visits operations that have had events, that are due, and
// the oldest of those that may always have work, then runs the timers. Only the table of timers
// defines when each is due and what it does.
#include <algorithm>

#include "collective/group_core.h"

namespace mcast {
namespace {

constexpr int kRounds = 4;  // of visits in one progress()

}  // namespace

// True while work is in flight that a dead member would delay.
bool GroupCore::active() const { return !g_.ops.empty() || path_.probing() || g_.switching(); }

bool GroupCore::idle() const {
  if (!g_.ended.empty() || !g_.ops.empty() || !g_.deferred.empty()) return false;
  if (messages_.unfinished() > 0 || !partial_.idle()) return false;
  return g_.failed() || (!active() && !path_.busy());
}

// One row for each timer: when it is due, and its action. Each action checks itself whether it is
// due, because arriving frames also trigger some of them.
std::span<const GroupCore::Timer> GroupCore::timers() {
  static constexpr Timer kTimers[] = {
      {[](const GroupCore& c) { return c.path_.creation().deadline(); },
       [](GroupCore& c, Nanos now, bool) { c.path_.creation().drive(now); }},
      {[](const GroupCore& c) { return c.path_.deadline(); },
       [](GroupCore& c, Nanos now, bool) {
         if (c.path_.busy() || !c.g_.ops.empty()) c.path_.drive(now);
       }},
      {[](const GroupCore& c) { return c.fold_ ? c.fold_->agreement_deadline() : kNever; },
       [](GroupCore& c, Nanos now, bool) {
         if (c.fold_ && c.fold_->agree(now) && !c.path_.checking() &&
             !c.membership_.misses(c.g_.next_sequence())) {
           c.fold_->begin_cutover(now);
         }
       }},
      {[](const GroupCore& c) { return c.small_.deadline(); },
       [](GroupCore& c, Nanos now, bool) {
         c.small_.announce(now);
         c.small_.pass_on(c.completion_);
       }},
      {[](const GroupCore& c) { return c.small_.tracker().deadline(); },
       [](GroupCore& c, Nanos now, bool drained) {
         if (drained) c.repair_.fetch_early(now);
       }},
      {[](const GroupCore& c) { return c.completion_.deadline(); },
       [](GroupCore& c, Nanos now, bool) { c.completion_.report(now); }},
      {[](const GroupCore& c) { return c.g_.suspicion_until(); },
       [](GroupCore& c, Nanos now, bool) { c.g_.drive_suspicion(now); }},
      {[](const GroupCore& c) { return c.membership_.deadline(); },
       [](GroupCore& c, Nanos now, bool drained) { c.membership_.drive(now, drained); }},
      {[](const GroupCore& c) { return c.fold_ ? c.fold_->deadline() : kNever; },
       [](GroupCore& c, Nanos now, bool drained) {
         if (c.fold_) c.fold_->drive(now, drained);
       }},
      {[](const GroupCore& c) { return c.inquiry_.deferred_deadline(); },
       [](GroupCore& c, Nanos now, bool) { c.inquiry_.check_deferred(now); }},
      {[](const GroupCore& c) { return c.inquiry_.closing_deadline(); },
       [](GroupCore& c, Nanos now, bool) { c.inquiry_.start_unconfirmed(now); }},
      {[](const GroupCore& c) { return c.inquiry_.deadline(); },
       [](GroupCore& c, Nanos now, bool) { c.inquiry_.check(now); }},
      {[](const GroupCore& c) { return c.partial_.deadline(); },
       [](GroupCore& c, Nanos now, bool) { c.partial_.drive(now); }},
      {[](const GroupCore& c) { return c.messages_.deadline(); },
       [](GroupCore& c, Nanos now, bool drained) { c.messages_.drive(now, drained); }},
  };
  return kTimers;
}

bool GroupCore::progress(Nanos now, bool drained) {
  partial_.collect();
  if (g_.failed()) {
    g_.ops.clear();
    return false;
  }
  if (const auto& guard = g_.params.multicast.guard) guard->seal_key().age(now);
  membership_.on_turn(active(), now);
  small_.keep_waiting();
  bool more = small_.send(now);
  more = messages_.pump() || more;
  if (const auto& arrived = g_.params.multicast.arrived; arrived && g_.large_in_flight > 0) {
    ingress_.update(arrived->load(), now);
  }
  settle(now);
  // Work that one operation has enabled for another is done at once, because a poll of the lane
  // costs system calls.
  for (int round = 0; round == 0 || (g_.ops.touched() && round < kRounds); round++) {
    for (const Sequence s : g_.ops.due(now)) {
      if (g_.failed()) return false;
      if (Operation* op = g_.find(s)) more = visit(*op, now, drained) || more;
    }
  }
  if (g_.failed()) return false;  // the operations' memory is the callers' again
  repair_.serve_parked();
  membership_.set_active(active(), now);
  for (const Timer& timer : timers()) {
    if (!g_.failed()) timer.act(*this, now, drained);
  }
  settle(now);
  // Work that became possible in this call is done in the next.
  return (more || g_.ops.touched()) && !g_.failed();
}

Nanos GroupCore::deadline(Nanos now) const {
  if (!g_.ended.empty()) return now;
  if (g_.failed()) return g_.ops.empty() ? kNever : now;
  if (g_.ops.touched()) return now;
  Nanos next = g_.ops.deadline();
  for (const Timer& timer : timers()) next = std::min(next, timer.when(*this));
  return std::max(now, next);
}

// The end of every event: acts on the notes that parts have left.
void GroupCore::settle(Nanos now) {
  for (;;) {
    if (g_.ops.base() < completion_.released()) release(completion_.released(), now);
    admit_deferred(now);
    if (g_.failed()) break;
    const std::vector<Sequence>& noted = g_.take_maybe_complete();
    if (noted.empty()) break;
    for (const Sequence s : noted) {
      if (Operation* const op = g_.find(s)) check_complete(*op, now);
    }
  }
  if (g_.take_news_of_failure()) tell_failure(now);
}

bool GroupCore::visit(Operation& op, Nanos now, bool drained) {
  const Sequence sequence = op.post.sequence;
  bool more = false;
  for (Movement* const movement : op.movements) more = movement->pump(op, now, drained) || more;
  if (!op.finished && now >= op.deadline) inquiry_.start(op.post, now);
  settle(now);
  // The operation may have been released.
  if (!g_.failed() && g_.find(sequence) == &op) reschedule(op);
  return more;
}

// After a visit: schedules the next one.
void GroupCore::reschedule(Operation& op) {
  bool settled = op.finished && op.local_complete, busy = false;
  // While the late ranks are asked for, the operation's time limit is over.
  Nanos next = op.finished || inquiry_.under_way() ? kNever : op.deadline;
  for (const Movement* const movement : op.movements) {
    settled = settled && movement->settled(op);
    busy = busy || movement->busy(op);
    next = std::min(next, movement->deadline(op));
  }
  if (settled) {
    g_.ops.settle(op.post.sequence);
    return;
  }
  g_.ops.set_busy(op, busy);
  g_.ops.set_timer(op, next);
}

}  // namespace mcast
