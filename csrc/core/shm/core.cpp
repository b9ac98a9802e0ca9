// The life of an operation among ranks that share a kernel. Three indices advance over the queue of
// operations: published (as far as slots are free), consumed (in order, when the ranks it needs
// have published), complete. An operation is complete when its last round is consumed here, since
// the slots keep the data for the others; if the others read its memory when they take the last
// round, it is complete only when all have consumed that round. When an operation ends, the
// caller's memory is released and its callback is queued.
#include "shm/core.h"

#include <algorithm>
#include <cstring>

#include "base/fence.h"
#include "collective/error_text.h"
#include "shm/failure_record.h"

namespace mcast {
namespace {

// Rounds per call; then limits are checked, and other groups get their turn.
constexpr int kPasses = 64;
// Polls of messages by a thread that has posted and does not wait; another thread handles messages
// that arrive later.
constexpr int kQuickPasses = 2;

wire::Descriptor descriptor_of(const SlotHeader& header) {
  return {static_cast<wire::Kind>(header.kind),
          header.element,
          header.root,
          header.bytes,
          std::string(header.name, strnlen(header.name, kHostName)),
          header.reduction};
}

}  // namespace

HostCore::HostCore(HostParams params, ControlBlock block, HostPort& port, Counters& counters)
    : params_(std::move(params)),
      port_(port),
      counters_(counters),
      lane_(block, params_.lane, params_.self),
      tools_{lane_, port, counters, Folder(lane_, params_.fold, port, counters)},
      needs_(lane_, port) {
  if (params_.lane != kMessageLane) return;
  messages_ = std::make_unique<HostMessages>(params_.name, lane_, params_.memory, port,
                                             tools_.folder, counters, ended_);
}

void HostCore::post(Post post) {
  counters_.add(Counter::ops_posted);
  if (!failure_.ok()) {
    counters_.add(Counter::ops_failed);
    if (post.done) ended_.emplace_back(std::move(post.done), failure_.with_context(op_text(post)));
    return;
  }
  auto op = std::make_unique<HostOperation>();
  op->plan = make_host_plan(post.descriptor, params_.size, params_.memory);
  begin_round(*op);
  op->deadline = later(post.posted, post.timeout);
  op->post = std::move(post);
  lane_.mine().called.store(op->post.sequence + 1, std::memory_order_release);
  ops_.push_back(std::move(op));
}

void HostCore::post_message(MessagePost post) {
  messages_->post(std::move(post));
  heed_messages();
}

bool HostCore::move_messages(int pass, bool large, bool& left_over) {
  if (!messages_) return false;
  if (!large && pass >= kQuickPasses) {
    left_over = left_over || messages_->more() || !messages_->quiet();
    return false;
  }
  const bool moved = messages_->progress(large, left_over);
  heed_messages();
  return moved;
}

bool HostCore::progress(bool large) {
  bool left_over = false, ended = false;
  for (int pass = 0; failure_.ok(); pass++) {
    if (large && pass == kPasses) return true;
    if (failure_claimed(lane_.failure())) {
      obey_failure();
      return false;
    }
    bool moved = false;
    left_over = false;
    // A caller that waits for an operation that has ended must not wait for the transfer of the
    // next. One round at a time, so that it is consumed while it is in the cache.
    if (publish_next(large && !ended, left_over)) moved = true;
    if (consume_next(large && !ended, left_over)) moved = true;
    while (complete_next()) moved = ended = true;
    const size_t before = ended_.size();
    if (failure_.ok() && move_messages(pass, large && !ended, left_over)) moved = true;
    // A waiting caller is not delayed by copies for others.
    ended = ended || ended_.size() > before;
    if (!moved) return left_over;
    moves_++;
  }
  return false;
}

const HostOperation* HostCore::consuming() const {
  return consuming_ < ops_.size() ? ops_[consuming_].get() : nullptr;
}

bool HostCore::can_publish(uint64_t least_consumed) const {
  if (publishing_ >= ops_.size()) return false;
  const HostOperation& op = *ops_[publishing_];
  return published_ < least_consumed + kHostDepth && ready_to_fill(op, publishing_ == 0);
}

bool HostCore::can_complete(uint64_t least_consumed) const {
  if (consuming_ == 0) return false;
  const HostOperation& op = *ops_.front();
  return !op.plan.lends() || op.in_slot || least_consumed >= op.first + op.plan.rounds;
}

bool HostCore::publish_next(bool large, bool& left_over) {
  if (!can_publish(lane_.least_consumed())) return false;
  HostOperation& op = *ops_[publishing_];
  if (fill_is_large(op) && !large) {
    left_over = true;
    return false;
  }
  if (op.published == 0) op.first = published_;
  // If memory was returned to its owner while it was folded, the failure was claimed before that,
  // so ranks that take this round see the claim (consume_next).
  if (!fill_round(tools_, op, op.published)) {
    fail_unreadable();
    return false;
  }
  op.published++;
  if (op.published == op.plan.rounds) publishing_++;
  published_++;
  counters_.add(Counter::shm_rounds);
  lane_.mine().published.store(published_, std::memory_order_seq_cst);
  needs_.wake_for_published();
  return true;
}

void HostCore::begin_round(HostOperation& op) const {
  op.agreed.assign(params_.size, false);
  op.taken.assign(params_.size, false);
  op.agreed[params_.self] = op.taken[params_.self] = true;
}

// Published headers of this round must describe the same call. If two ranks differ, the one that
// consumes later sees the other's header.
bool HostCore::compare(HostOperation& op, uint32_t index) {
  const wire::Descriptor& ours = op.post.descriptor;
  const uint64_t round = op.first + index;
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    if (op.agreed[m] || !lane_.published(m, round)) continue;
    const SlotHeader& header = lane_.header(m, round);
    const wire::Descriptor theirs = descriptor_of(header);
    if (theirs.same(ours) && header.sequence == op.post.sequence &&
        header.index_low == static_cast<uint16_t>(index)) {
      if (const auto wrong = lengths_that_differ(tools_, op, index, m)) {
        fail(*wrong, m);
        return false;
      }
      op.agreed[m] = true;
      continue;
    }
    fail(differs(op.post.sequence, params_.self, ours.to_string(), m, theirs.to_string()), m);
    return false;
  }
  return true;
}

bool HostCore::consume_next(bool large, bool& left_over) {
  if (consuming_ >= ops_.size()) return false;
  HostOperation& op = *ops_[consuming_];
  const uint32_t index = op.consumed;
  if (op.published <= index || !compare(op, index)) return false;
  const bool direct = op.plan.direct();
  if (direct && failure_claimed(lane_.failure())) return false;
  const Taken taken = take_round(tools_, op, index, large);
  left_over = left_over || taken == Taken::kLarge;
  if (taken == Taken::kFailed) fail_unreadable();
  if (taken != Taken::kAll) return false;
  if (direct) {
    // After the reads: a rank that returns memory early has claimed the failure record before.
    full_fence();
    if (failure_claimed(lane_.failure())) return false;
  }
  const bool known = publishing_ == consuming_ && op.published == op.plan.rounds;
  if (known) publishing_++;  // this round has shown that there are no more (HostPlan::kUnknown)
  op.consumed++;
  begin_round(op);
  if (op.consumed == op.plan.rounds) consuming_++;
  lane_.mine().consumed.store(op.first + op.consumed, std::memory_order_seq_cst);
  needs_.wake_for_consumed();
  return true;
}

bool HostCore::complete_next() {
  if (!can_complete(lane_.least_consumed())) return false;
  finish_oldest({});
  return true;
}

void HostCore::finish_oldest(const Status& status) {
  const std::unique_ptr<HostOperation> oldest = std::move(ops_.front());
  ops_.pop_front();
  if (publishing_ > 0) publishing_--;
  if (consuming_ > 0) consuming_--;
  HostOperation& op = *oldest;
  counters_.add(status.ok() ? Counter::ops_completed : Counter::ops_failed);
  if (params_.trace) {
    params_.trace->record(trace_event(op, op.post.descriptor, params_, port_.now(), status.ok()));
  }
  if (op.post.moments) *op.post.moments = {op.first_byte, op.last_byte, port_.now()};
  // The failure is claimed before the memory is written again: readers check in the opposite order.
  if (!status.ok()) full_fence();
  if (!op.post.done) return;
  ended_.emplace_back(std::move(op.post.done),
                      status.ok() ? status : status.with_context(op_text(op.post)));
}

void HostCore::deliver() {
  delivering_.swap(ended_);
  for (const auto& [done, status] : delivering_) done(status);
  delivering_.clear();
}

void HostCore::disarm() {
  needs_.disarm();
  if (messages_) messages_->disarm();
}

bool HostCore::arm(HostWaiter waiter) {
  if (!failure_.ok()) return true;
  if (messages_ && !messages_->arm(waiter)) return false;
  if (ops_.empty() || arm_operations(waiter)) return true;
  if (messages_) messages_->disarm();
  return false;
}

bool HostCore::arm_operations(HostWaiter waiter) {
  HostNeed data;
  if (const HostOperation* op = consuming(); op != nullptr && op->published > op->consumed) {
    const wire::Descriptor& d = op->post.descriptor;
    data.waiter = waiter;
    data.rounds = op->first + op->consumed + 1;
    data.kind = HostNeed::Kind::kAll;
    if (op->takes_from_root()) {
      data.kind = HostNeed::Kind::kFrom;
      data.member = d.root;
    }
  }
  // Waits for the nearest of the ends that are not reached. An end that was reached since the last
  // progress() may allow more work; if it does not, it delays nothing.
  const uint64_t least = lane_.least_consumed();
  if (can_publish(least) || can_complete(least)) return false;
  uint64_t room = Needs::kNoRoom;
  const auto want = [&](uint64_t rounds) {
    if (least < rounds) room = std::min(room, rounds);
  };
  if (publishing_ < ops_.size()) {
    if (published_ >= kHostDepth) want(published_ + 1 - kHostDepth);
  }
  if (consuming_ > 0) want(ops_[0]->first + ops_[0]->plan.rounds);
  return needs_.arm(data, room, waiter);
}

}  // namespace mcast
