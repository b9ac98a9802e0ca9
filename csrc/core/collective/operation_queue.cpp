// Slots lie in a deque, by sequence. An operation that is in flight has its machines in its slot; a
// small one that is over here gives them up ("settles"). What a turn of the lane looks at is kept
// apart from that, so that its cost is what moves and not what is posted: a list of those that
// something happened to, a set ordered by time, and the large operations, of which only the oldest
// can get on.
#include "collective/operation_queue.h"

#include <algorithm>
#include <utility>

namespace mcast {

wire::Descriptor OperationQueue::Slot::descriptor() const {
  return {kind, element, root, bytes, name == nullptr ? "" : *name, reduction};
}

const std::string* OperationQueue::intern(const std::string& name) {
  const auto it = names_.find(name);
  if (it != names_.end()) return &*it;
  return names_.size() < kMostNames ? &*names_.insert(name).first : nullptr;
}

Operation& OperationQueue::push(std::unique_ptr<Operation> op) {
  const wire::Descriptor& d = op->plan.descriptor;
  Slot slot;
  slot.name = intern(d.name);
  slot.bytes = d.bytes;
  slot.hash = op->plan.hash;
  slot.root = d.root;
  slot.kind = d.kind;
  slot.element = d.element;
  slot.reduction = d.reduction;
  slot.op = std::move(op);
  slots_.push_back(std::move(slot));
  unsettled_++;
  return *slots_.back().op;
}

void OperationQueue::forget(Operation& op) {
  set_busy(op, false);
  set_timer(op, kNever);
  unsettled_--;
}

void OperationQueue::settle(Sequence s) {
  Slot& at = *slot(s);
  forget(*at.op);
  at.kept = std::move(at.op->kept);
  at.op.reset();
}

Operation& OperationQueue::revive(Sequence s, std::unique_ptr<Operation> op) {
  Slot& at = *slot(s);
  op->kept = std::exchange(at.kept, {});
  at.op = std::move(op);
  unsettled_++;
  return *at.op;
}

std::unique_ptr<Operation> OperationQueue::pop() {
  Slot slot = std::move(slots_.front());
  if (slot.op) forget(*slot.op);
  slots_.pop_front();
  base_++;
  return std::move(slot.op);
}

void OperationQueue::clear() {
  base_ = next();
  slots_.clear();
  unsettled_ = 0;
  touched_.clear();
  moved_ = false;
  busy_.clear();
  timers_.clear();
}

void OperationQueue::touch(Operation& op) {
  if (std::exchange(op.touched, true)) return;
  touched_.push_back(op.post.sequence);
}

void OperationQueue::set_busy(Operation& op, bool busy) {
  if (std::exchange(op.busy, busy) == busy) return;
  if (busy) {
    busy_.insert(op.post.sequence);
  } else {
    moved_ = moved_ || busy_.size() > kMostBusy;
    busy_.erase(op.post.sequence);
  }
}

void OperationQueue::set_timer(Operation& op, Nanos when) {
  if (op.timer == when) return;
  if (op.timer != kNever) timers_.erase({op.timer, op.post.sequence});
  if (when != kNever) timers_.emplace(when, op.post.sequence);
  op.timer = when;
}

const std::vector<Sequence>& OperationQueue::due(Nanos now) {
  std::vector<Sequence>& out = due_;
  out.clear();
  out.swap(touched_);
  moved_ = false;
  for (const Sequence s : out) {
    if (Operation* op = find(s)) op->touched = false;
  }
  for (const auto& [when, s] : timers_) {
    if (when > now) break;
    out.push_back(s);
  }
  size_t left = kMostBusy;
  for (const Sequence s : busy_) {
    if (left-- == 0) break;
    out.push_back(s);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  visits_ += out.size();
  return out;
}

}  // namespace mcast
