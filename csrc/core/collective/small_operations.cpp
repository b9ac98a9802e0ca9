// Small operations, which a root sends unasked and which end before all members have them. A root
// sends them in the order of the calls, as far as late receivers can store them
// (protocol/eager_window.h). The rest stays with the copies kept for repair, and is sent when older
// operations are complete everywhere. Because they are sent in order, one number gives a root's
// position: it is sent with the data, and once more when the root stops. A receiver that misses an
// operation learns it from that number; one that has not posted requests all it lacks at once.
#include "collective/small_operations.h"

#include <algorithm>

namespace mcast {

SmallOperations::SmallOperations(GroupContext& context, SourceAuth& sources)
    : g_(context),
      sources_(sources),
      eager_(context.params.staging, context.params.first_sequence),
      sent_(context.size, context.params.alpha) {}

void SmallOperations::on_post(const Operation& op, Chunk ahead) {
  eager_.on_post(op.plan.roots *
                 EagerWindow::cost(ahead, std::min(ahead * op.plan.chunk, op.plan.block)));
}

void SmallOperations::add(Operation& op) {
  unkept_.push_back(op.post.sequence);
  if (unkept_.size() > 1 || !keep(op)) {
    if (op.readable() == op.plan.block) g_.counters.add(Counter::retransmit_waits);
    return;
  }
  unkept_.pop_front();
  unsent_.push_back(op.post.sequence);
}

void SmallOperations::on_released() {
  eager_.on_released(g_.ops.base());
  announcer_.on_released(g_.ops.base());
  keep_waiting();
}

bool SmallOperations::keep(Operation& op) {
  if (op.readable() < op.plan.block) return false;  // staged, and not here yet
  const size_t cost = op.plan.block + OperationQueue::kSettledCost;
  // One operation always fits, however small the setting is.
  if (kept_bytes_ > 0 && kept_bytes_ + cost > g_.params.retransmit) return false;
  const ConstBytes block = op.post.input.bytes();
  op.own.kept.assign(block.begin(), block.end());
  kept_bytes_ += cost;
  op.own.started = true;
  return true;
}

// In order: a later operation that overtook would hold memory that is only returned after the
// waiting one.
void SmallOperations::keep_waiting() {
  while (!unkept_.empty() && !g_.failed()) {
    Operation* const op = g_.find(unkept_.front());
    if (op != nullptr && !keep(*op)) return;
    if (op != nullptr) unsent_.push_back(unkept_.front());
    unkept_.pop_front();
    if (op == nullptr) continue;
    g_.ops.touch(*op);
    g_.may_be_complete(*op);
  }
}

// Returns whether more can be sent at once.
bool SmallOperations::send(Nanos now) {
  Chunk left = 0;
  for (bool first = true; !unsent_.empty(); first = false) {
    const Sequence sequence = unsent_.front();
    Operation* const op = g_.find(sequence);
    if (op == nullptr) {  // of a group that failed
      unsent_.pop_front();
      continue;
    }
    if (!eager_.open(sequence)) {
      if (!std::exchange(op->own.held_back, true)) g_.counters.add(Counter::eager_stalls);
      return false;
    }
    if (first) left = GroupContext::kBatchesPerTurn * op->plan.batch;
    BlockSender& sender = *op->own.sender;
    while (!sender.all_sent()) {
      if (left == 0) return true;
      bool again = false;
      const ChunkRange run = sender.take(left, again, now);
      for (Chunk c = run.first; c < run.end; c++, left--) {
        if (!g_.send_chunk(*op, c)) {
          sender.put_back({c, run.end}, again);
          return false;
        }
        if (again) g_.counters.add(Counter::remulticast_chunks);
      }
      op->first_byte = std::min(op->first_byte, now);
      op->last_byte = now;
    }
    unsent_.pop_front();
    sources_.on_sent(*op, op->plan.block);
    announcer_.on_sent(sequence + 1, now);
    g_.ops.touch(*op);
  }
  return false;
}

// `root` has sent all its small operations below `end`.
void SmallOperations::note_sent(Member root, Sequence end, Nanos now) {
  const Sequence before = sent_.on_sent(root, end, g_.ops.next(), now);
  for (Sequence s = std::max(before, g_.ops.base()); s < std::min(end, g_.ops.next()); s++) {
    Operation* const op = g_.find(s);
    if (op == nullptr || op->local_complete || !op->plan.small || op->receivers.empty()) continue;
    const auto stream = op->stream_of(root);
    if (!stream || op->receivers[*stream].complete()) continue;
    op->receivers[*stream].on_position(op->plan.chunks, now);
    op->flow.active.add(*stream);
    g_.ops.touch(*op);
  }
}

// Applies positions that roots had reported before the post.
void SmallOperations::learn_sent(Operation& op, Nanos now) {
  for (uint32_t stream = 0; stream < op.receivers.size(); stream++) {
    const Member root = op.member_of(stream);
    if (stream == op.own.stream || op.post.sequence >= sent_.sent(root)) continue;
    op.flow.late = true;
    // Data that has been requested already gets its time to arrive.
    const bool asked = sent_.asked(root, op.post.sequence);
    op.receivers[stream].on_position(op.plan.chunks, asked ? now : sent_.since(root));
    op.flow.active.add(stream);
  }
}

void SmallOperations::announce(Nanos now) {
  const Announce how = announcer_.due(now);
  if (how == Announce::kNo) return;
  g_.counters.add(Counter::positions_sent);
  if (how == Announce::kMulticast) {
    g_.send_datagram(wire::DatagramType::kPosition, announcer_.end(), 0, 0, {}, false, true);
  } else {
    sent_news_.push_back({{g_.self, announcer_.end()}, g_.self});
  }
}

// To the parent, and to children whose subtrees may lack some of it: all news in one frame.
void SmallOperations::pass_on(const CompletionReports& completion) {
  if (sent_news_.empty()) return;
  const auto tell = [this](Member to, Sequence complete) {
    std::vector<wire::SentEntry> entries;
    for (const SentNews& news : sent_news_) {
      if (news.from != to && news.entry.root != to && complete < news.entry.end) {
        entries.push_back(news.entry);
      }
    }
    constexpr size_t kPerFrame = 8000;  // keeps the frame below kMaxControlFrame
    for (std::span<const wire::SentEntry> left = entries; !left.empty();) {
      const auto some = left.first(std::min(left.size(), kPerFrame));
      wire::Writer body;
      wire::put_sent(body, some);
      g_.send_frame(to, Channel::kControl, wire::FrameType::kSent, 0, 0, body.bytes());
      left = left.subspan(some.size());
    }
  };
  if (!g_.tree.is_top(g_.self)) tell(g_.tree.parent(g_.self), g_.ops.base());
  for (uint32_t c = 0; c < g_.tree.children(g_.self); c++) {
    tell(static_cast<Member>(g_.tree.first_child(g_.self) + c), completion.child_complete(c));
  }
  sent_news_.clear();
}

void SmallOperations::on_sent_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now) {
  std::vector<wire::SentEntry> entries;
  if (!wire::parse_sent(body, entries)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  for (const wire::SentEntry& e : entries) {
    if (e.root >= g_.size ||
        (e.end > g_.ops.next() && e.end - g_.ops.next() > GroupContext::kFurthestAhead)) {
      g_.counters.add(Counter::malformed);
      return;
    }
    g_.counters.add(Counter::positions_received);
    if (e.root != g_.self) note_sent(e.root, e.end, now);
    sent_news_.push_back({e, header.member});
  }
}

}  // namespace mcast
