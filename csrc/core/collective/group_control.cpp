// Credit and completion on the control tree. Receivers report how far they have
// drained each stream and how far it may go on, a few times per window; each node passes the least
// of its subtree up, the top sends every root its limit down the path to it. Completion is
// cumulative (protocol/completion.h).
#include <algorithm>

#include "collective/group_core.h"

namespace mcast {

void GroupCore::report_credit(Operation& op, bool first) {
  const Plan& plan = op.plan;
  const Chunk least = std::min<Chunk>(plan.window, plan.quantum + plan.batch);
  const uint32_t groups = std::max(1u, port_.busy_groups());
  const Chunk share = groups == 1 ? plan.widest : std::max<Chunk>(least, plan.window / groups);
  if (first && share == least && least < plan.window) counters_.add(Counter::budget_overcommits);
  for (uint32_t slot = 0; slot < plan.roots; slot++) {
    if (op.own_slot == slot) {
      if (first) op.credit->set_own(slot, CreditTree::unbounded());
      continue;
    }
    const BlockReceiver& r = op.receivers[slot];
    const Chunk high_water = r.high_water();
    const bool ended = high_water == plan.chunks && op.reported[slot] != high_water;
    if (!first && !ended && high_water - op.reported[slot] < plan.quantum) continue;
    op.reported[slot] = high_water;
    const uint64_t limit =
        std::min<uint64_t>(plan.chunks, static_cast<uint64_t>(high_water) + share);
    op.credit->set_own(slot, {high_water, static_cast<Chunk>(limit), r.lost()});
  }
}

void GroupCore::flow_credit(Operation& op, Nanos now) {
  op.credit->collect(changed_);
  if (changed_.empty()) return;
  entries_.clear();
  for (const auto& [slot, least] : changed_) {
    entries_.push_back({op.member_of(slot), least.high_water, least.limit, least.lost});
  }
  if (tree_.is_top(self_)) {
    const std::vector<wire::CreditEntry> entries = entries_;
    route_limits(op, entries, now);
    return;
  }
  send_credit(tree_.parent(self_), wire::FrameType::kCredit, op, entries_);
}

void GroupCore::send_credit(Member to, wire::FrameType type, const Operation& op,
                            std::span<const wire::CreditEntry> entries) {
  constexpr size_t kPerFrame = 4000;  // keeps the frame below kMaxControlFrame
  while (!entries.empty()) {
    const size_t n = std::min(entries.size(), kPerFrame);
    wire::Writer body;
    wire::put_credit(body, entries.first(n));
    send_frame(to, Channel::kControl, type, op.post.sequence, op.plan.hash, body.bytes());
    entries = entries.subspan(n);
  }
}

void GroupCore::route_limits(Operation& op, const std::vector<wire::CreditEntry>& entries,
                             Nanos now) {
  std::map<Member, std::vector<wire::CreditEntry>> by_hop;
  for (const wire::CreditEntry& e : entries) {
    if (e.root == self_) {
      if (op.sender) op.sender->on_credit(e.high_water, e.limit, e.lost, now);
      continue;
    }
    const Member hop = tree_.next_hop(self_, e.root);
    if (tree_.is_child(hop, self_)) by_hop[hop].push_back(e);
  }
  for (const auto& [hop, list] : by_hop) {
    send_credit(hop, wire::FrameType::kLimit, op, list);
  }
}

void GroupCore::on_credit(const Frame& header, ConstBytes body, Nanos now) {
  std::vector<wire::CreditEntry> entries;
  if (!tree_.is_child(header.member, self_) || !wire::parse_credit(body, entries)) {
    counters_.add(Counter::malformed);
    return;
  }
  const uint32_t child = tree_.child_index(header.member);
  Operation* op = find(header.sequence);
  if (op == nullptr) {
    if (ops_.slot(header.sequence) != nullptr) {
      agrees(header.member, header.sequence, header.argument);
    } else if (header.sequence < ops_.base()) {
      counters_.add(Counter::stale);
    } else {
      if (!early_allowed(header, now)) return;
      early_credit_[header.sequence].push_back({child, header.argument, std::move(entries)});
    }
    return;
  }
  if (!agrees(header.member, header.sequence, header.argument)) return;
  if (!op->credit) return;
  ops_.touch(*op);
  op->credit->post_child(child);
  for (const wire::CreditEntry& e : entries) {
    const auto slot = e.root < size_ ? op->slot_of(e.root) : std::nullopt;
    if (!slot) {
      counters_.add(Counter::malformed);
      return;
    }
    op->credit->set_child(child, *slot, {e.high_water, e.limit, e.lost});
  }
}

void GroupCore::on_limit(const Frame& header, ConstBytes body, Nanos now) {
  std::vector<wire::CreditEntry> entries;
  const bool from_parent = !tree_.is_top(self_) && tree_.parent(self_) == header.member;
  const bool parsed =
      from_parent && wire::parse_credit(body, entries) &&
      std::all_of(entries.begin(), entries.end(), [this](const auto& e) { return e.root < size_; });
  if (!parsed) {
    counters_.add(Counter::malformed);
    return;
  }
  Operation* op = find(header.sequence);
  if (op == nullptr || header.argument != op->plan.hash) {
    counters_.add(Counter::stale);
    return;
  }
  ops_.touch(*op);
  route_limits(*op, entries, now);
}

void GroupCore::report_complete(Nanos now) {
  CompletionTracker::Up up;
  if (!completion_.report_due(now, up)) return;
  wire::Writer body;
  wire::put_hashes(body, up.hashes);
  send_frame(tree_.parent(self_), Channel::kControl, wire::FrameType::kComplete, up.end, up.first,
             body.bytes());
}

void GroupCore::on_complete(const Frame& header, ConstBytes body, Nanos now) {
  std::vector<uint32_t> hashes;
  if (!tree_.is_child(header.member, self_) || !wire::parse_hashes(body, hashes)) {
    counters_.add(Counter::malformed);
    return;
  }
  Sequence where = 0;
  uint32_t other = CompletionTracker::kOwn;
  switch (completion_.on_child(tree_.child_index(header.member), header.sequence, header.argument,
                               hashes, where, other, now)) {
    case CompletionTracker::Report::kOk:
      if (tree_.is_top(self_)) on_released(completion_.subtree_complete(), now);
      break;
    case CompletionTracker::Report::kInvalid:
      counters_.add(Counter::malformed);
      break;
    case CompletionTracker::Report::kMismatch:
      counters_.add(Counter::mismatched);
      if (other == CompletionTracker::kOwn) {
        describe_to(header.member, where);
      } else {
        // Not called here yet: let the one tell the other.
        send_frame(static_cast<Member>(tree_.first_child(self_) + other), Channel::kControl,
                   wire::FrameType::kDescribe, where, header.member);
      }
      break;
  }
}

void GroupCore::on_released(Sequence end, Nanos now) {
  end = std::min(end, completion_.own_complete());
  if (!completion_.on_released(end)) return;
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(tree_.first_child(self_) + c), Channel::kControl,
               wire::FrameType::kReleased, end, 0);
  }
  release(end, now);
}

}  // namespace mcast
