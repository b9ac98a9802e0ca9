// The send side of the own stream: data within credit and turn, repairs that several ranks asked
// for, Position announcements. A large allgather takes turns in chains: a root starts when it sees
// that everybody before it in its chain is near its end, on the multicast itself; a predecessor
// that stays silent while its chain is idle is passed over after a little patience per place, so
// that a slow rank does not idle the chain. Roots of an operation follow those of earlier
// operations of the group.
#include <algorithm>

#include "collective/group_core.h"

namespace mcast {

bool GroupCore::pump(Operation& op, Nanos now) {
  BlockSender& sender = *op.sender;
  if (!op.sending_started) {
    if (!sender.can_send() || !my_turn(op, now)) return false;
    op.sending_started = true;
    op.turn_retry = kNever;
  }
  keep_in_step(op, now);
  bool more = false;
  for (Chunk left = kBatchesPerPoll; left > 0; left--) {
    bool again = false;
    Chunk most = op.plan.batch;
    if (!sender.resending()) {
      // A staged source (device memory) may not have got here yet; its stager wakes the lane.
      const uint64_t here = op.readable();
      const auto end =
          here == op.plan.block ? op.plan.chunks : static_cast<Chunk>(here / op.plan.chunk);
      if (sender.sent() >= end) return false;
      most = std::min(most, end - sender.sent());
    }
    const ChunkRange run = sender.take(most, again, now);
    if (run.first >= run.end) break;
    for (Chunk c = run.first; c < run.end; c++) {
      if (!send_chunk(op, c)) {
        sender.put_back({c, run.end}, again);
        return false;
      }
      if (op.first_byte == kNever) op.first_byte = now;
      op.last_byte = now;
      if (again) counters_.add(Counter::remulticast_chunks);
    }
    more = sender.can_send();
  }
  if (sender.all_sent() && op.plan.large) on_the_way_ = sender.on_the_way();
  counters_.add(Counter::credit_stalls, sender.stalls() - op.stalls_counted);
  counters_.add(Counter::congestion_cuts, sender.cuts() - op.cuts_counted);
  op.stalls_counted = sender.stalls();
  op.cuts_counted = sender.cuts();
  return more;
}

void GroupCore::keep_in_step(Operation& op, Nanos now) {
  if (!op.skew) return;
  Chunk least = SkewLimiter::kNoLimit;
  for (uint32_t slot = 0; slot < op.plan.roots; slot++) {
    const Chunk mark = op.receivers[slot].high_water();
    if (slot != op.own_slot && mark < op.plan.chunks) least = std::min(least, mark);
  }
  const Chunk end = least == SkewLimiter::kNoLimit ? least : op.skew->end(least, now);
  op.sender->hold_at(end);
  op.turn_retry = op.sender->held() ? op.skew->deadline() : kNever;
}

bool GroupCore::send_chunk(Operation& op, Chunk chunk) {
  const size_t offset = static_cast<size_t>(chunk) * op.plan.chunk;
  const size_t length = op.plan.length(chunk);
  const bool gather = !op.plan.small && op.plan.block >= port_.gather_from();
  return send_datagram(wire::DatagramType::kData, op.post.sequence, op.plan.hash, chunk,
                       op.source(*op.own_slot).subspan(offset, length), chunk + 1 == op.plan.chunks,
                       op.plan.small, gather ? &op.post.input : nullptr);
}

bool GroupCore::my_turn(Operation& op, Nanos now) {
  const auto near_end = [](const Operation& o, uint32_t slot) {
    const Chunk near = o.plan.window / 2;
    const Chunk at = o.own_slot == slot ? o.sender->sent() : o.receivers[slot].high_water();
    return static_cast<uint64_t>(at) + near >= o.plan.chunks;
  };
  // Streams of earlier operations that still need the links.
  uint32_t earlier = 0;
  for (const Sequence s : ops_.busy()) {
    if (s >= op.post.sequence || earlier > op.plan.roots) break;
    const Operation* const before = ops_.find(s);
    if (before->plan.small || before->local_complete || before->receivers.empty()) continue;
    for (uint32_t slot = 0; slot < before->plan.roots; slot++) {
      if (!near_end(*before, slot)) earlier++;
    }
  }
  if (!op.chains) return earlier == 0;
  const Chains& chains = *op.chains;
  const uint32_t chain = chains.chain_of(self_);
  const bool may_open = earlier == 0 || earlier + chain < chains.chains();

  uint32_t before_me = 0;
  bool busy = false;
  for (uint32_t m = chains.first(chain); m < chains.end(chain); m++) {
    if (m == self_) continue;
    const bool ended = near_end(op, m);
    busy = busy || (op.receivers[m].heard() && !ended);
    if (m < self_ && !ended) before_me++;
  }
  if (busy || earlier > 0 || !op.sender->has_credit()) {
    op.turn_idle_since = op.turn_retry = kNever;
  } else if (op.turn_idle_since == kNever) {
    op.turn_idle_since = now;
  }
  bool patience_over = false;
  if (op.turn_idle_since != kNever && before_me > 0) {
    op.turn_retry = op.turn_idle_since + before_me * params_.alpha;
    patience_over = now >= op.turn_retry;
  }
  return chains.my_turn(
      self_, may_open, [&](Member m) { return op.receivers[m].heard(); },
      [&](Member m) { return near_end(op, m); }, [&](Member) { return patience_over; });
}

void GroupCore::announce(Operation& op, Nanos now) {
  const Announce how = op.sender->position_due(now);
  if (how == Announce::kNo) return;
  counters_.add(Counter::positions_sent);
  if (how == Announce::kMulticast) {
    send_datagram(wire::DatagramType::kPosition, op.post.sequence, op.plan.hash, op.sender->sent(),
                  {});
    return;
  }
  pass_on_position(op, *op.own_slot, op.sender->sent(), self_);
}

// Along the tree, to whom it may be news: not where the credit says that the subtree knows.
void GroupCore::pass_on_position(Operation& op, uint32_t slot, Chunk sent, Member from) {
  wire::Writer body;
  body.put<uint16_t>(op.member_of(slot));
  body.put<uint32_t>(op.plan.hash);
  const auto tell = [&](Member to) {
    if (to == from) return;
    send_frame(to, Channel::kControl, wire::FrameType::kPosition, op.post.sequence, sent,
               body.bytes());
  };
  if (!tree_.is_top(self_)) tell(tree_.parent(self_));
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    const bool knows = op.credit && op.credit->child(c, slot).high_water >= sent;
    if (!knows) tell(static_cast<Member>(tree_.first_child(self_) + c));
  }
}

void GroupCore::on_position_frame(const Frame& header, ConstBytes body, Nanos now) {
  wire::Reader in(body);
  const auto root = in.get<uint16_t>();
  const auto descriptor = in.get<uint32_t>();
  if (!in.done() || root >= size_) {
    counters_.add(Counter::malformed);
    return;
  }
  on_position(header.sequence, root, descriptor, header.argument, now);
  Operation* const op = find(header.sequence);
  const auto slot = op != nullptr && op->plan.roots > 0 && descriptor == op->plan.hash
                        ? op->slot_of(root)
                        : std::nullopt;
  if (slot) pass_on_position(*op, *slot, header.argument, header.member);
}

void GroupCore::serve_repairs(Operation& op, Nanos now) {
  if (now < op.repairs->deadline()) return;
  std::vector<ChunkRange> again;
  std::vector<RepairServer::Answer> answers;
  op.repairs->flush(again, answers);
  for (const ChunkRange& r : again) op.sender->resend(r);
  for (const RepairServer::Answer& a : answers) {
    if (!a.unicast.empty()) donate(op, *op.own_slot, a.asker, a.id, a.unicast);
    if (!a.coming.empty()) {
      say_not_have(op.post.sequence, a.asker, a.id, self_, a.coming, true);
    }
  }
}

}  // namespace mcast
