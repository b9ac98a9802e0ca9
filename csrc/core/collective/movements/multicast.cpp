// Broadcast and all-gather by multicast.
//   1. Every member reports to the top of the control tree that it has posted the operation, and
//      how much it can receive (multicast_credit.cpp).
//   2. Each root sends its block once, within its window and its turn: in a large all-gather roots
//      take turns in chains; otherwise roots that send at once are kept in step
//      (protocol/skew_limiter.h).
//   3. Losses are repaired (repair.h); the control tree reports when all members have all data.
// Cost, n bytes in all, P members: a root's link sends its own block, n / P (broadcast: n), and
// every link receives n - n / P (broadcast: n); the switch makes the copies. Memory traffic per
// byte: one copy at the sender, one at the receiver.
//
// Turns. A root starts when it sees in the multicast data that all roots before it in its chain are
// near their ends. A silent predecessor in an idle chain is skipped after a short wait per place,
// so that a slow rank does not idle the chain. Roots of an operation follow those of earlier
// operations of the group.
#include "collective/movements/multicast.h"
#include "base/coverage.h"

#include <algorithm>

namespace mcast {

void Multicast::start(Operation& op) {
  const Plan& plan = op.plan;
  if (op.own.stream) {
    SenderParams sender;
    sender.chunks = plan.chunks;
    // A large operation waits for credit if its eager chunks would exceed the allowance.
    sender.eager = plan.small ? plan.chunks : small_.open(op.post.sequence) ? plan.eager : 0;
    sender.window = plan.window;
    sender.widest = plan.widest;
    sender.on_the_way = on_the_way_;
    sender.batch = plan.batch;
    sender.quantum = plan.quantum;
    op.own.sender.emplace(sender);
  }
  if (!plan.small) start_credit(op);
}

bool Multicast::pump(Operation& op, Nanos now) {
  BlockSender& sender = *op.own.sender;
  if (!op.own.started) {
    if (!sender.can_send() || !my_turn(op, now)) return false;
    op.own.started = true;
    op.own.turn_retry = kNever;
  }
  keep_in_step(op, now);
  bool more = false;
  for (Chunk left = GroupContext::kBatchesPerTurn; left > 0; left--) {
    bool again = false;
    Chunk most = op.plan.batch;
    if (!sender.resending()) {
      // A staged source (device memory) may not be here yet; its stager wakes the lane.
      const uint64_t here = op.readable();
      const auto end =
          here == op.plan.block ? op.plan.chunks : static_cast<Chunk>(here / op.plan.chunk);
      if (sender.sent() >= end) return false;
      most = std::min(most, end - sender.sent());
    }
    const ChunkRange run = sender.take(most, again, now);
    if (run.first >= run.end) break;
    for (Chunk c = run.first; c < run.end; c++) {
      if (!g_.send_chunk(op, c)) {
        sender.put_back({c, run.end}, again);
        return false;
      }
      if (op.first_byte == kNever) op.first_byte = now;
      op.last_byte = now;
      if (again) g_.counters.add(Counter::remulticast_chunks);
    }
    if (!again && !op.plan.small) {
      const uint64_t sent = uint64_t{sender.sent()} * op.plan.chunk;
      sources_.on_sent(op, std::min<uint64_t>(op.plan.block, sent));
    }
    more = sender.can_send();
  }
  if (sender.all_sent() && op.plan.large) on_the_way_ = sender.on_the_way();
  count(op);
  return more;
}

void Multicast::count(Operation& op) {
  const BlockSender& sender = *op.own.sender;
  g_.counters.add(Counter::credit_stalls, sender.stalls() - op.own.stalls_counted);
  g_.counters.add(Counter::congestion_cuts, sender.cuts() - op.own.cuts_counted);
  op.own.stalls_counted = sender.stalls();
  op.own.cuts_counted = sender.cuts();
}

void Multicast::keep_in_step(Operation& op, Nanos now) {
  if (!op.flow.skew) return;
  Chunk least = SkewLimiter::kNoLimit;
  for (uint32_t stream = 0; stream < op.plan.roots; stream++) {
    const Chunk reached = op.receivers[stream].high_water();
    if (stream != op.own.stream && reached < op.plan.chunks) least = std::min(least, reached);
  }
  const Chunk end = least == SkewLimiter::kNoLimit ? least : op.flow.skew->end(least, now);
  op.own.sender->hold_at(end);
  op.own.turn_retry = op.own.sender->held() ? op.flow.skew->deadline() : kNever;
}

// It would not help to wait until the block has ended: the next one's first chunks travel
// meanwhile.
bool Multicast::near_end(const Operation& op, uint32_t stream) const {
  const Chunk near = op.plan.window / 2;
  const Chunk at =
      op.own.stream == stream ? op.own.sender->sent() : op.receivers[stream].high_water();
  return static_cast<uint64_t>(at) + near >= op.plan.chunks;
}

// Counts blocks of earlier operations that still need the links.
uint32_t Multicast::earlier_blocks(const Operation& op) const {
  uint32_t earlier = 0;
  for (const Sequence s : g_.ops.busy()) {
    if (s >= op.post.sequence || earlier > op.plan.roots) break;
    const Operation* const before = g_.ops.find(s);
    if (before->plan.small || before->local_complete || before->receivers.empty()) continue;
    for (uint32_t stream = 0; stream < before->plan.roots; stream++) {
      if (!near_end(*before, stream)) earlier++;
    }
  }
  return earlier;
}

bool Multicast::my_turn(Operation& op, Nanos now) {
  const uint32_t earlier = earlier_blocks(op);
  if (!op.flow.chains) return earlier == 0;
  const Chains& chains = *op.flow.chains;
  const uint32_t chain = chains.chain_of(g_.self);
  const bool may_open = earlier == 0 || earlier + chain < chains.chains();

  const Chunk near = op.plan.window / 2;
  const auto heard = [&](Member m) { return op.receivers[m].heard(); };
  const auto left = [&](Member m) { return op.plan.chunks - op.receivers[m].high_water(); };
  const Chains::Ahead ahead = chains.ahead(g_.self, left, heard);
  uint32_t silent = 0;  // before this one
  for (uint32_t m = chains.first(chain); m < g_.self; m++) {
    silent += !heard(static_cast<Member>(m)) || left(static_cast<Member>(m)) > near ? 1 : 0;
  }
  if (ahead.under_way > near || earlier > 0 || !op.own.sender->has_credit()) {
    op.own.turn_idle_since = op.own.turn_retry = kNever;
  } else if (op.own.turn_idle_since == kNever || silent != op.own.silent_before) {
    op.own.turn_idle_since = now;
  }
  op.own.silent_before = silent;
  bool patience_over = false;
  if (op.own.turn_idle_since != kNever && ahead.before > near) {
    op.own.turn_retry = op.own.turn_idle_since + silent * g_.params.alpha;
    patience_over = now >= op.own.turn_retry;
  }
  const bool mine = Chains::my_turn(ahead, near, may_open, patience_over);
  if (mine && patience_over) MCAST_COVER(turn_passed_over);
  return mine;
}

void Multicast::announce(Operation& op, Nanos now) {
  const Announce how = op.own.sender->position_due(now);
  if (how == Announce::kNo) return;
  g_.counters.add(Counter::positions_sent);
  if (how == Announce::kMulticast) {
    g_.send_datagram(wire::DatagramType::kPosition, op.post.sequence, op.plan.hash,
                     op.own.sender->sent(), {});
    return;
  }
  pass_on_position(op, *op.own.stream, op.own.sender->sent(), g_.self);
}

// Forwards it along the tree, except where the credit shows that the subtree knows it.
void Multicast::pass_on_position(Operation& op, uint32_t stream, Chunk sent, Member from) {
  wire::Writer body;
  body.put<uint16_t>(op.member_of(stream));
  body.put<uint32_t>(op.plan.hash);
  const auto tell = [&](Member to) {
    if (to == from) return;
    g_.send_frame(to, Channel::kControl, wire::FrameType::kPosition, op.post.sequence, sent,
                  body.bytes());
  };
  if (!g_.tree.is_top(g_.self)) tell(g_.tree.parent(g_.self));
  for (uint32_t c = 0; c < g_.tree.children(g_.self); c++) {
    const bool knows = op.flow.credit && op.flow.credit->child(c, stream).high_water >= sent;
    if (!knows) tell(static_cast<Member>(g_.tree.first_child(g_.self) + c));
  }
}

void Multicast::on_position_frame(const Frame& header, ConstBytes body, Nanos now) {
  wire::Reader in(body);
  const auto root = in.get<uint16_t>();
  const auto descriptor = in.get<uint32_t>();
  if (!in.done() || root >= g_.size) {
    g_.counters.add(Counter::malformed);
    return;
  }
  reception_.on_position(header.sequence, root, descriptor, header.argument, now);
  Operation* const op = g_.find(header.sequence);
  const auto stream = op != nullptr && op->plan.roots > 0 && descriptor == op->plan.hash
                          ? op->stream_of(root)
                          : std::nullopt;
  if (stream) pass_on_position(*op, *stream, header.argument, header.member);
}

}  // namespace mcast
