// Entries are in a deque, by sequence. The entry of an operation in flight has its machines; a
// small operation that is complete here releases them ("settles"). The structures that a poll
// visits are separate, so that its cost depends on the operations that move and not on those that
// are posted: a list of operations that have had events, a set ordered by time, and the large
// operations, of which only the oldest can progress.
#include "collective/operation_queue.h"

#include <algorithm>
#include <utility>

namespace mcast {

wire::Descriptor OperationQueue::Entry::descriptor() const {
  return {kind, element, root, bytes, name == nullptr ? "" : *name, reduction};
}

const std::string* OperationQueue::intern(const std::string& name) {
  const auto it = names_.find(name);
  if (it != names_.end()) return &*it;
  return names_.size() < kMostNames ? &*names_.insert(name).first : nullptr;
}

Operation& OperationQueue::push(std::unique_ptr<Operation> op) {
  const wire::Descriptor& d = op->plan.descriptor;
  Entry entry;
  entry.name = intern(d.name);
  entry.bytes = d.bytes;
  entry.hash = op->plan.hash;
  entry.root = d.root;
  entry.kind = d.kind;
  entry.element = d.element;
  entry.reduction = d.reduction;
  entry.op = std::move(op);
  entries_.push_back(std::move(entry));
  unsettled_++;
  return *entries_.back().op;
}

void OperationQueue::forget(Operation& op) {
  set_busy(op, false);
  set_timer(op, kNever);
  unsettled_--;
}

void OperationQueue::settle(Sequence s) {
  Entry& at = *entry(s);
  forget(*at.op);
  at.kept = std::move(at.op->own.kept);
  at.op.reset();
}

Operation& OperationQueue::revive(Sequence s, std::unique_ptr<Operation> op) {
  Entry& at = *entry(s);
  op->own.kept = std::exchange(at.kept, {});
  at.op = std::move(op);
  unsettled_++;
  return *at.op;
}

std::unique_ptr<Operation> OperationQueue::pop() {
  Entry entry = std::move(entries_.front());
  if (entry.op) forget(*entry.op);
  entries_.pop_front();
  base_++;
  return std::move(entry.op);
}

void OperationQueue::clear() {
  base_ = next();
  entries_.clear();
  unsettled_ = 0;
  touched_.clear();
  moved_ = false;
  busy_.clear();
  timers_.clear();
}

void OperationQueue::touch(Operation& op) {
  if (std::exchange(op.queued.touched, true)) return;
  touched_.push_back(op.post.sequence);
}

void OperationQueue::set_busy(Operation& op, bool busy) {
  if (std::exchange(op.queued.busy, busy) == busy) return;
  if (busy) {
    busy_.insert(op.post.sequence);
  } else {
    moved_ = moved_ || busy_.size() > kMostBusy;
    busy_.erase(op.post.sequence);
  }
}

void OperationQueue::set_timer(Operation& op, Nanos when) {
  if (op.queued.timer == when) return;
  if (op.queued.timer != kNever) timers_.erase({op.queued.timer, op.post.sequence});
  if (when != kNever) timers_.emplace(when, op.post.sequence);
  op.queued.timer = when;
}

const std::vector<Sequence>& OperationQueue::due(Nanos now) {
  std::vector<Sequence>& out = due_;
  out.clear();
  out.swap(touched_);
  moved_ = false;
  for (const Sequence s : out) {
    if (Operation* op = find(s)) op->queued.touched = false;
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
