// Small operations, which a root sends unasked and which end before everybody has them. A root
// sends them in the order of the calls, as far as receivers that are late can keep them
// (protocol/eager_window.h); the rest stays with the copies kept for repair, and leaves when older
// operations are complete everywhere. Since they leave in order, one number says how far a root is:
// it comes with the data itself, and once more when the root stops. A receiver that misses
// something learns of it that way, and one that has not posted asks for all it lacks at once.
#include <algorithm>

#include "collective/group_core.h"

namespace mcast {

bool GroupCore::keep_small(Operation& op) {
  if (op.readable() < op.plan.block) return false;  // staged, and not here yet
  const size_t cost = op.plan.block + OperationQueue::kSettledCost;
  // One operation always fits, however small the memory is set.
  if (kept_bytes_ > 0 && kept_bytes_ + cost > params_.retransmit) return false;
  const ConstBytes block = op.post.input.bytes();
  op.kept.assign(block.begin(), block.end());
  kept_bytes_ += cost;
  op.sending_started = true;
  return true;
}

// In order: a later operation that overtook would hold memory which is only given back after the
// waiting one.
void GroupCore::keep_waiting(Nanos now) {
  while (!unkept_.empty() && !failed()) {
    Operation* const op = find(unkept_.front());
    if (op != nullptr && !keep_small(*op)) return;
    if (op != nullptr) unsent_.push_back(unkept_.front());
    unkept_.pop_front();
    if (op == nullptr) continue;
    ops_.touch(*op);
    check_local(*op, now);
  }
}

// Whether more can be sent at once.
bool GroupCore::send_small(Nanos now) {
  Chunk left = 0;
  for (bool first = true; !unsent_.empty(); first = false) {
    const Sequence sequence = unsent_.front();
    Operation* const op = find(sequence);
    if (op == nullptr) {  // of a group that failed
      unsent_.pop_front();
      continue;
    }
    if (!eager_.open(sequence)) {
      if (!std::exchange(op->held_back, true)) counters_.add(Counter::eager_stalls);
      return false;
    }
    if (first) left = kBatchesPerPoll * op->plan.batch;
    BlockSender& sender = *op->sender;
    while (!sender.all_sent()) {
      if (left == 0) return true;
      bool again = false;
      const ChunkRange run = sender.take(left, again, now);
      for (Chunk c = run.first; c < run.end; c++, left--) {
        if (!send_chunk(*op, c)) {
          sender.put_back({c, run.end}, again);
          return false;
        }
        if (again) counters_.add(Counter::remulticast_chunks);
      }
      op->first_byte = std::min(op->first_byte, now);
      op->last_byte = now;
    }
    unsent_.pop_front();
    announcer_.on_sent(sequence + 1, now);
    ops_.touch(*op);
  }
  return false;
}

// The own operation that is over here, with the machines that repair it; null: not ours to repair.
Operation* GroupCore::revive(Sequence sequence) {
  const OperationQueue::Slot* const slot = ops_.slot(sequence);
  if (slot == nullptr || slot->kept.empty()) return nullptr;
  auto owned = std::make_unique<Operation>();
  Operation& op = *owned;
  op.post.sequence = sequence;
  op.post.descriptor = slot->descriptor();
  op.self = self_;
  op.plan = make_plan(op.post.descriptor, params_.agreed);
  op.own_slot = op.slot_of(self_);
  op.finished = op.local_complete = op.sending_started = true;
  SenderParams sender;
  sender.chunks = sender.eager = op.plan.chunks;
  sender.batch = op.plan.batch;
  op.sender.emplace(sender);
  op.sender->set_all_sent();
  op.repairs.emplace(size_ > 2 ? params_.alpha / 4 : 0);
  return &ops_.revive(sequence, std::move(owned));
}

// `root` has sent all its small operations below `end`.
void GroupCore::note_sent(Member root, Sequence end, Nanos now) {
  const Sequence before = sent_.on_sent(root, end, ops_.next(), now);
  for (Sequence s = std::max(before, ops_.base()); s < std::min(end, ops_.next()); s++) {
    Operation* const op = find(s);
    if (op == nullptr || op->local_complete || !op->plan.small || op->receivers.empty()) continue;
    const auto slot = op->slot_of(root);
    if (!slot || op->receivers[*slot].complete()) continue;
    op->receivers[*slot].on_position(op->plan.chunks, now);
    ops_.touch(*op);
  }
}

// What the roots had said before the post.
void GroupCore::learn_sent(Operation& op, Nanos now) {
  for (uint32_t slot = 0; slot < op.receivers.size(); slot++) {
    const Member root = op.member_of(slot);
    if (slot == op.own_slot || op.post.sequence >= sent_.sent(root)) continue;
    op.late = true;
    // What has been asked for already gets its time to come.
    const bool asked = sent_.asked(root, op.post.sequence);
    op.receivers[slot].on_position(op.plan.chunks, asked ? now : sent_.since(root));
  }
}

void GroupCore::announce_sent(Nanos now) {
  const Announce how = announcer_.due(now);
  if (how == Announce::kNo) return;
  counters_.add(Counter::positions_sent);
  if (how == Announce::kMulticast) {
    send_datagram(wire::DatagramType::kPosition, announcer_.end(), 0, 0, {}, false, true);
  } else {
    sent_news_.push_back({{self_, announcer_.end()}, self_});
  }
}

// To the parent, and to children whose subtree may lack something of it: all news in one frame.
void GroupCore::pass_on_sent() {
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
      send_frame(to, Channel::kControl, wire::FrameType::kSent, 0, 0, body.bytes());
      left = left.subspan(some.size());
    }
  };
  if (!tree_.is_top(self_)) tell(tree_.parent(self_), ops_.base());
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    tell(static_cast<Member>(tree_.first_child(self_) + c), completion_.child_complete(c));
  }
  sent_news_.clear();
}

void GroupCore::on_sent_frame(const Frame& header, ConstBytes body, Nanos now) {
  std::vector<wire::SentEntry> entries;
  if (!wire::parse_sent(body, entries)) {
    counters_.add(Counter::malformed);
    return;
  }
  for (const wire::SentEntry& e : entries) {
    if (e.root >= size_ || (e.end > ops_.next() && e.end - ops_.next() > kFurthestAhead)) {
      counters_.add(Counter::malformed);
      return;
    }
    counters_.add(Counter::positions_received);
    if (e.root != self_) note_sent(e.root, e.end, now);
    sent_news_.push_back({e, header.member});
  }
}

// Asks for what was sent before this rank posts it and is not in staging. The socket was seen
// empty.
void GroupCore::fetch_early(Nanos now) {
  if (now < sent_.deadline()) return;
  std::vector<SentTracker::Ask> asks;
  sent_.due(ops_.next(), now, asks);
  for (const SentTracker::Ask& ask : asks) {
    std::vector<ChunkRange> missing;  // sequences
    for (Sequence s = ask.first; s < ask.end; s++) {
      if (staging_.holds(s, ask.root)) continue;
      if (missing.empty() || missing.back().end != s) missing.push_back({s, s});
      missing.back().end = s + 1;
    }
    constexpr size_t kPerFrame = 4000;
    for (std::span<const ChunkRange> left = missing; !left.empty();) {
      const auto some = left.first(std::min(left.size(), kPerFrame));
      wire::Writer body;
      wire::put_ranges(body, ask.root, some);
      counters_.add(Counter::early_fetches_sent);
      send_frame(ask.root, Channel::kControl, wire::FrameType::kEarlyFetch, 0, 0, body.bytes());
      left = left.subspan(some.size());
    }
  }
}

void GroupCore::on_early_fetch(const Frame& header, ConstBytes body) {
  Member root;
  std::vector<ChunkRange> ranges;
  if (!wire::parse_ranges(body, root, ranges) || root != self_) {
    counters_.add(Counter::malformed);
    return;
  }
  for (const ChunkRange& r : ranges) {
    for (Sequence s = std::max(r.first, ops_.base()); s < std::min(r.end, ops_.next()); s++) {
      send_early(s, header.member);
    }
  }
}

// All of it together is no more than may be sent ahead in any case.
void GroupCore::send_early(Sequence sequence, Member asker) {
  const OperationQueue::Slot& slot = *ops_.slot(sequence);
  const Operation* const op = slot.op.get();
  ConstBytes block;
  if (op == nullptr) {
    block = slot.kept;
  } else if (op->sender && op->plan.small && op->sender->all_sent()) {
    block = op->kept;
  }
  const size_t chunk = params_.agreed.chunk;
  const size_t most = std::max<size_t>(1, kFetchPayload / chunk) * chunk;
  for (size_t at = 0; at < block.size(); at += most) {
    const ConstBytes part = block.subspan(at, std::min(most, block.size() - at));
    const auto first = static_cast<Chunk>(at / chunk);
    const auto count = static_cast<Chunk>((part.size() + chunk - 1) / chunk);
    wire::Writer head;
    wire::put_fetch_data_head(head, self_, {first, first + count});
    send_frame(asker, Channel::kRepair, wire::FrameType::kEarlyData, sequence, slot.hash,
               head.bytes(), part);
    counters_.add(Counter::early_chunks_sent, count);
  }
}

void GroupCore::on_early_data(const Frame& header, ConstBytes body, Nanos now) {
  wire::FetchData data;
  const size_t chunk = params_.agreed.chunk;
  if (!wire::parse_fetch_data(body, data) || data.root != header.member ||
      data.payload.size() > size_t{data.range.size()} * chunk ||
      data.payload.size() + chunk <= size_t{data.range.size()} * chunk) {
    counters_.add(Counter::malformed);
    return;
  }
  repair_heard_[header.member] = now;
  if (ops_.slot(header.sequence) != nullptr &&
      !agrees(header.member, header.sequence, header.argument)) {
    return;
  }
  Operation* const op = find(header.sequence);
  if (header.sequence < ops_.next() && (op == nullptr || op->local_complete)) {
    counters_.add(Counter::stale);
    return;
  }
  const auto slot = op != nullptr ? op->slot_of(data.root) : std::nullopt;
  if (op != nullptr &&
      (!slot || slot == op->own_slot || op->receivers.empty() || data.range.end > op->plan.chunks ||
       data.payload.size() != op->plan.length(data.range))) {
    counters_.add(Counter::malformed);
    return;
  }
  for (Chunk c = data.range.first; c < data.range.end; c++) {
    const size_t at = size_t{c - data.range.first} * chunk;
    const ConstBytes part = data.payload.subspan(at, std::min(chunk, data.payload.size() - at));
    counters_.add(Counter::early_chunks_received);
    if (op == nullptr) {
      stage(header.sequence, {data.root, c}, header.argument, false, part);
    } else {
      op->late = true;
      place(*op, *slot, c, part, false, now);
    }
  }
}

}  // namespace mcast
