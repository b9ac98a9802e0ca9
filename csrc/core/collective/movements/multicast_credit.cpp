// Credit on the control tree. Receivers report how far they have drained each block, and the limit
// up to which it may be sent, a few times per window. Each node passes the minimum of its subtree
// up, and the top sends every root its limit down the path to it.
#include <algorithm>
#include <map>
#include <utility>

#include "collective/movements/multicast.h"

namespace mcast {

void Multicast::start_credit(Operation& op) {
  const Plan& plan = op.plan;
  if (plan.chains < plan.roots) {
    op.flow.chains.emplace(plan.roots, plan.chains);
  } else if (plan.roots > 2) {
    op.flow.skew.emplace(std::max<Chunk>(1, plan.window / 2), g_.params.alpha);
  }
  op.flow.credit.emplace(plan.roots, g_.tree.children(g_.self));
  op.flow.reported.assign(plan.roots, 0);
  op.flow.told.assign(plan.roots, 0);
  op.flow.credit->post_own();
  report_credit(op, true);
}

// All groups of an endpoint that receive large streams at the same time share half of what its
// socket can queue, in equal parts. Within a group this part is for streams that have begun,
// earlier ones first; if roots take turns, the streams that have not begun may use half as much
// together. Earlier reports no longer count: limits shrink when another group begins, and when a
// stream has to wait for an earlier one.
void Multicast::report_credit(Operation& op, bool first) {
  const Plan& plan = op.plan;
  const uint32_t groups = std::max(1u, g_.port.busy_groups());
  const Chunk part = plan.window / groups;
  const Chunk share = groups == 1 ? plan.widest : std::max(kLeastWindow, part);
  if (first && part < kLeastWindow) g_.counters.add(Counter::budget_overcommits);
  const auto report = [&](uint32_t stream, uint64_t limit) {
    const BlockReceiver& r = op.receivers[stream];
    op.flow.reported[stream] = r.high_water();
    op.flow.told[stream] = static_cast<Chunk>(limit);
    op.flow.credit->set_own(stream, {r.high_water(), static_cast<Chunk>(limit), r.lost()});
  };
  const bool all = std::exchange(op.flow.groups, groups) != groups;
  // A part of the share, so that the stream does not stall while the report travels.
  const Chunk quantum = std::min(plan.quantum, std::max<Chunk>(1, share / 4));
  const uint64_t total = static_cast<uint64_t>(share) * plan.chains;
  uint64_t room = total;
  op.flow.active.visit([&](uint32_t stream) {
    const BlockReceiver& r = op.receivers[stream];
    const Chunk mark = r.high_water();
    const uint64_t most = std::max<uint64_t>(kLeastWindow, std::min<uint64_t>(share, room));
    const uint64_t granted = std::min<uint64_t>(plan.chunks - mark, most);
    room -= std::min(room, granted);
    const uint64_t limit = mark + granted;
    const Chunk news = mark - op.flow.reported[stream];
    const bool ended = mark == plan.chunks;
    const Chunk told = op.flow.told[stream];
    const bool more = limit >= told + quantum || (mark >= told && limit > told);
    if (all || more || news >= quantum || (ended && news > 0)) report(stream, limit);
    return !(ended && r.complete());
  });
  if (!all) return;
  const uint64_t begin =
      plan.chains == plan.roots ? share : std::max<uint64_t>(1, total / 2 / plan.roots);
  for (uint32_t stream = 0; stream < plan.roots; stream++) {
    if (op.own.stream == stream) continue;
    const BlockReceiver& r = op.receivers[stream];
    if (!r.heard()) {
      report(stream, std::min<uint64_t>(plan.chunks, begin));
    } else if (first && r.high_water() == plan.chunks) {
      report(stream, plan.chunks);
    }
  }
  if (first && op.own.stream) op.flow.credit->set_own(*op.own.stream, CreditTree::unbounded());
}

void Multicast::drive_credit(Operation& op, Nanos now) {
  report_credit(op, false);
  op.flow.credit->collect(changed_);
  if (changed_.empty()) return;
  entries_.clear();
  for (const auto& [stream, least] : changed_) {
    entries_.push_back({op.member_of(stream), least.high_water, least.limit, least.lost});
  }
  if (g_.tree.is_top(g_.self)) {
    route_limits(op, entries_, now);
    return;
  }
  send_credit(g_.tree.parent(g_.self), wire::FrameType::kCredit, op, entries_);
}

void Multicast::send_credit(Member to, wire::FrameType type, const Operation& op,
                            std::span<const wire::CreditEntry> entries) {
  constexpr size_t kPerFrame = 4000;  // keeps the frame below kMaxControlFrame
  while (!entries.empty()) {
    const size_t n = std::min(entries.size(), kPerFrame);
    wire::Writer body;
    wire::put_credit(body, entries.first(n));
    g_.send_frame(to, Channel::kControl, type, op.post.sequence, op.plan.hash, body.bytes());
    entries = entries.subspan(n);
  }
}

void Multicast::route_limits(Operation& op, std::span<const wire::CreditEntry> entries, Nanos now) {
  std::map<Member, std::vector<wire::CreditEntry>> by_hop;
  for (const wire::CreditEntry& e : entries) {
    if (e.root == g_.self) {
      if (op.own.sender) op.own.sender->on_credit(e.high_water, e.limit, e.lost, now);
      continue;
    }
    const Member hop = g_.tree.next_hop(g_.self, e.root);
    if (g_.tree.is_child(hop, g_.self)) by_hop[hop].push_back(e);
  }
  for (const auto& [hop, list] : by_hop) {
    send_credit(hop, wire::FrameType::kLimit, op, list);
  }
}

void Multicast::on_credit(Operation& op, const Frame& header,
                          std::span<const wire::CreditEntry> entries) {
  if (!op.flow.credit) return;
  const uint32_t child = g_.tree.child_index(header.member);
  g_.ops.touch(op);
  op.flow.credit->post_child(child);
  for (const wire::CreditEntry& e : entries) {
    const auto stream = e.root < g_.size ? op.stream_of(e.root) : std::nullopt;
    if (!stream) {
      g_.counters.add(Counter::malformed);
      return;
    }
    op.flow.credit->set_child(child, *stream, {e.high_water, e.limit, e.lost});
  }
}

void Multicast::on_limit(const Frame& header, ConstBytes body, Nanos now) {
  std::vector<wire::CreditEntry> entries;
  const bool parsed = g_.from_parent(header.member) && wire::parse_credit(body, entries) &&
                      std::all_of(entries.begin(), entries.end(),
                                  [this](const auto& e) { return e.root < g_.size; });
  if (!parsed) {
    g_.counters.add(Counter::malformed);
    return;
  }
  Operation* op = g_.find(header.sequence);
  if (op == nullptr || header.argument != op->plan.hash) {
    g_.counters.add(Counter::stale);
    return;
  }
  g_.ops.touch(*op);
  route_limits(*op, entries, now);
}

}  // namespace mcast
