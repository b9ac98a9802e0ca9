// The receive side: data, positions and repair. A datagram is judged in this order: whose
// operation, which stream, which chunk, is it new, is its checksum right; only then do its bytes
// touch a region and its bit is set (the placement rule), so late, stale, repeated and corrupt
// datagrams can neither reach memory that was given back nor overwrite a good chunk. Lost chunks
// are asked of the ring neighbour, then of the root; donors answer at once from verified chunks
// only.
#include <algorithm>
#include <cstring>

#include "base/streaming_copy.h"
#include "collective/group_core.h"

namespace mcast {
namespace {
constexpr size_t kRepairQueue = 256u << 10;  // bytes that wait for one asker's connection
}  // namespace

void GroupCore::on_datagram(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now) {
  if (failed()) return;
  if (header.member == self_) {
    counters_.add(Counter::own_echo);
    return;
  }
  if (header.member >= size_ || header.subgroup != 0) {
    counters_.add(Counter::malformed);
    return;
  }
  counters_.add(Counter::datagrams_received);
  counters_.add(Counter::datagram_bytes_received, datagram.size());
  if (header.type == wire::DatagramType::kData) {
    on_data(header, datagram, now);
    return;
  }
  if (!wire::verify_datagram(datagram)) {
    counters_.add(Counter::corrupt);
    return;
  }
  const ConstBytes payload = datagram.subspan(wire::kDatagramHeader);
  switch (header.type) {
    case wire::DatagramType::kPosition:
      reachability_.on_heard(header.member, header.sequence);
      if (header.in_order) {
        counters_.add(Counter::positions_received);
        hear_sent(header, now);
      } else {
        on_position(header.sequence, header.member, header.descriptor, header.chunk, now);
      }
      break;
    case wire::DatagramType::kProbe:
      if (header.sequence == 0) {
        if (probe_) probe_->on_probe(header.member);
      } else if (check_ && header.sequence == round_) {
        check_->on_probe(header.member);
      }
      break;
    case wire::DatagramType::kAbort: {
      wire::AbortNotice notice;
      if (wire::parse_abort(payload, notice)) {
        on_abort(notice, header.sequence, now);
      } else {
        counters_.add(Counter::malformed);
      }
      break;
    }
    case wire::DatagramType::kData:
      break;
  }
}

size_t GroupCore::headroom() const {
  constexpr uint64_t kParts = 8;  // of the window, so that credit flows on meanwhile
  for (const Sequence s : ops_.busy()) {
    const Operation* const op = ops_.find(s);
    if (!op->plan.large || op->receiving == 0 || !op->ring.empty()) continue;
    uint64_t coming = 0;
    for (const BlockReceiver& r : op->receivers) {
      if (!r.complete()) coming += r.chunks() - r.high_water();
    }
    const uint64_t window = uint64_t{op->plan.window} * op->plan.chains;
    return coming < window ? 0 : window / kParts * op->plan.chunk;
  }
  return 0;
}

void GroupCore::hear_sent(const wire::DatagramHeader& header, Nanos now) {
  if (header.sequence > ops_.next() && header.sequence - ops_.next() > kFurthestAhead) {
    counters_.add(Counter::malformed);
    return;
  }
  note_sent(header.member, header.sequence, now);
}

bool GroupCore::agrees(Member peer, Sequence sequence, uint32_t descriptor) {
  if (descriptor == ops_.slot(sequence)->hash) return true;
  counters_.add(Counter::mismatched);
  describe_to(peer, sequence);
  return false;
}

// Data of an operation that is not in flight here.
void GroupCore::on_other_data(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now) {
  if (!wire::verify_datagram(datagram)) {
    counters_.add(Counter::corrupt);
    return;
  }
  if (ops_.slot(header.sequence) != nullptr) {  // settled
    if (agrees(header.member, header.sequence, header.descriptor)) {
      counters_.add(Counter::duplicates);
    }
    return;
  }
  if (header.sequence - ops_.next() > kFurthestAhead) {
    counters_.add(Counter::malformed);
    return;
  }
  reachability_.on_heard(header.member, header.sequence);
  stage(header.sequence, {header.member, header.chunk}, header.descriptor, true,
        datagram.subspan(wire::kDatagramHeader));
  if (header.in_order) note_sent(header.member, header.sequence, now);
}

void GroupCore::on_data(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now) {
  if (header.sequence < ops_.base()) {
    counters_.add(Counter::stale);
    return;
  }
  const ConstBytes payload = datagram.subspan(wire::kDatagramHeader);
  Operation* op = find(header.sequence);
  if (op == nullptr) return on_other_data(header, datagram, now);
  if (header.descriptor != op->plan.hash) {
    if (!wire::verify_datagram(datagram)) {
      counters_.add(Counter::corrupt);
    } else {
      agrees(header.member, header.sequence, header.descriptor);
    }
    return;
  }
  const auto slot = op->slot_of(header.member);
  if (!slot || op->receivers.empty() || header.chunk >= op->plan.chunks ||
      payload.size() != op->plan.length(header.chunk)) {
    counters_.add(Counter::malformed);
    return;
  }
  BlockReceiver& receiver = op->receivers[*slot];
  if (op->local_complete || receiver.has(header.chunk)) {
    counters_.add(Counter::duplicates);
    return;
  }
  if (!wire::verify_datagram(datagram)) {
    counters_.add(Counter::corrupt);
    return;
  }
  ops_.touch(*op);
  const bool in_order = header.in_order;
  place(*op, *slot, header.chunk, payload, true, now);
  if (in_order && !failed()) note_sent(header.member, header.sequence, now);
}

bool GroupCore::place(Operation& op, uint32_t slot, Chunk chunk, ConstBytes payload, bool live,
                      Nanos now) {
  BlockReceiver& receiver = op.receivers[slot];
  if (op.local_complete || receiver.has(chunk)) {
    counters_.add(Counter::duplicates);
    return false;
  }
  std::byte* const to = op.destination(slot) + static_cast<size_t>(chunk) * op.plan.chunk;
  copy_result(to, payload.data(), payload.size(), op.plan.block * op.receivers.size());
  receiver.accept(chunk, live, now);
  if (op.first_byte == kNever) op.first_byte = now;
  op.last_byte = now;
  counters_.add(Counter::chunks_placed);
  if (!op.final_to.empty() && op.final_to[slot] == chunk) {
    const auto bytes = [&op](Chunk c) {
      return std::min<uint64_t>(op.plan.block, static_cast<uint64_t>(c) * op.plan.chunk);
    };
    op.final_to[slot] = static_cast<Chunk>(receiver.bitmap().next_clear(chunk, op.plan.chunks));
    op.raise_completed(slot, bytes(chunk), bytes(op.final_to[slot]));
  }
  if (receiver.complete()) {
    op.receiving--;
    check_local(op, now);
  }
  return true;
}

void GroupCore::stage(Sequence sequence, Staging::Key key, uint32_t descriptor, bool live,
                      ConstBytes payload) {
  switch (staging_.put(sequence, key, descriptor, live, payload)) {
    case Staging::Put::kStored:
      counters_.add(Counter::chunks_staged);
      break;
    case Staging::Put::kDuplicate:
      counters_.add(Counter::duplicates);
      break;
    case Staging::Put::kFull:
      counters_.add(Counter::staging_drops);
      break;
  }
}

void GroupCore::on_position(Sequence sequence, Member root, uint32_t descriptor, Chunk sent,
                            Nanos now) {
  counters_.add(Counter::positions_received);
  if (ops_.slot(sequence) != nullptr && !agrees(root, sequence, descriptor)) return;
  Operation* op = find(sequence);
  if (op == nullptr || op->local_complete || op->receivers.empty()) return;
  const auto slot = op->slot_of(root);
  if (!slot || slot == op->own_slot) return;
  op->receivers[*slot].on_position(sent, now);
  ops_.touch(*op);
}

void GroupCore::detect_losses(Operation& op, Nanos now, bool drained) {
  for (uint32_t slot = 0; slot < op.receivers.size(); slot++) {
    BlockReceiver& receiver = op.receivers[slot];
    if (receiver.complete()) continue;
    ranges_.clear();
    bool cutoff = false;
    receiver.detect(now, drained, ranges_, cutoff);
    if (cutoff) counters_.add(Counter::cutoffs);
    for (const ChunkRange& r : ranges_) {
      counters_.add(Counter::gaps, r.size());
      op.fetch->want(op.member_of(slot), r);
    }
  }
}

void GroupCore::drive_fetch(Operation& op, Nanos now) {
  drive_reads();
  if (op.fetch->idle()) return;
  if (const size_t expired = op.fetch->expire(now, repair_heard_)) {
    counters_.add(Counter::fetch_timeouts, expired);
  }
  const auto has = [&op](Member root, Chunk c) { return op.receivers[*op.slot_of(root)].has(c); };
  FetchClient::Request request;
  while (op.fetch->next(now, has, request)) {
    wire::Writer body;
    wire::put_fetch(body, op.plan.hash, request.root, request.ranges);
    counters_.add(Counter::fetches_sent);
    send_frame(request.donor, Channel::kControl, wire::FrameType::kFetch, op.post.sequence,
               request.id, body.bytes());
  }
}

void GroupCore::on_fetch(const Frame& header, ConstBytes body, Nanos now) {
  counters_.add(Counter::fetches_received);
  wire::Fetch fetch;
  if (!wire::parse_fetch(body, fetch)) {
    counters_.add(Counter::malformed);
    return;
  }
  // Another call's bytes would look like the asker's: none are sent, and both are told.
  if (ops_.slot(header.sequence) != nullptr &&
      !agrees(header.member, header.sequence, fetch.descriptor)) {
    return;
  }
  Operation* op = find(header.sequence);
  if (op == nullptr && fetch.root == self_) op = revive(header.sequence);
  const auto slot = op != nullptr && op->plan.roots > 0 ? op->slot_of(fetch.root) : std::nullopt;
  const bool in_bounds = slot && op->ring.empty() &&
                         (slot == op->own_slot || !op->receivers.empty()) &&
                         std::all_of(fetch.ranges.begin(), fetch.ranges.end(),
                                     [op](ChunkRange r) { return r.end <= op->plan.chunks; });
  if (!in_bounds) {
    if (header.sequence < ops_.base()) counters_.add(Counter::stale);
    say_not_have(header.sequence, header.member, header.argument, fetch.root, fetch.ranges, false);
    return;
  }
  // Who has asked twice already may not hear the multicast at all: answer by stream then.
  if (slot == op->own_slot && op->repairs && fetch_attempts(header.argument) < 2) {
    op->repairs->add(header.member, header.argument, std::move(fetch.ranges), now);
    ops_.touch(*op);
    return;
  }
  donate(*op, *slot, header.member, header.argument, fetch.ranges);
}

void GroupCore::donate(Operation& op, uint32_t slot, Member asker, uint32_t id,
                       const std::vector<ChunkRange>& ranges) {
  const bool own = op.own_slot == slot;
  // A finished operation's memory belongs to the caller again, except a small root's own copy.
  const bool readable = own && op.plan.small ? op.sending_started : op.data_held();
  const Chunk own_end = own && op.sender ? op.sender->sent() : 0;
  std::vector<ChunkRange> missing, present;
  for (const ChunkRange& r : ranges) {
    Chunk at = r.first;
    while (at < r.end) {
      const auto held = [&](Chunk c) {
        return readable && (own ? c < own_end : op.receivers[slot].has(c));
      };
      const bool have = held(at);
      Chunk end = at + 1;
      while (end < r.end && held(end) == have) end++;
      (have ? present : missing).push_back({at, end});
      at = end;
    }
  }
  if (!present.empty()) {
    std::vector<ChunkRange> sent = grant_reads(op, slot, asker, id, present);
    if (!sent.empty()) {
      parked_.park(asker, {op.post.sequence, op.member_of(slot), id, std::move(sent)});
    }
  }
  if (!missing.empty()) {
    say_not_have(op.post.sequence, asker, id, op.member_of(slot), missing, false);
  }
}

// What askers are owed, as far as their connections take it: what a link cannot carry would only
// pile up behind it.
void GroupCore::serve_parked() {
  if (parked_.empty()) return;
  const auto per_frame =
      static_cast<Chunk>(std::max<size_t>(1, kFetchPayload / params_.agreed.chunk));
  for (const Member asker : parked_.askers()) {
    if (!gone_[asker].ok()) {
      parked_.drop(asker);
      continue;
    }
    RepairQueue::Request part;
    while (port_.queued(asker, Channel::kRepair) < kRepairQueue &&
           parked_.next(asker, per_frame, part)) {
      Operation* const op = find(part.sequence);
      const auto slot = op != nullptr ? op->slot_of(part.root) : std::nullopt;
      if (!slot || !(op->data_held() || slot == op->own_slot)) continue;
      for (const ChunkRange& r : part.ranges) send_fetch_data(*op, *slot, asker, part.id, r);
    }
  }
}

void GroupCore::send_fetch_data(Operation& op, uint32_t slot, Member asker, uint32_t id,
                                ChunkRange range) {
  const Chunk per_frame = static_cast<Chunk>(std::max<size_t>(1, kFetchPayload / op.plan.chunk));
  const ConstBytes source = op.source(slot);
  for (Chunk at = range.first; at < range.end; at += per_frame) {
    const ChunkRange part{at, std::min(range.end, at + per_frame)};
    const size_t bytes = op.plan.length(part);
    wire::Writer head;
    wire::put_fetch_data_head(head, op.member_of(slot), part);
    send_frame(asker, Channel::kRepair, wire::FrameType::kFetchData, op.post.sequence, id,
               head.bytes(), source.subspan(static_cast<size_t>(at) * op.plan.chunk, bytes));
    counters_.add(Counter::repair_chunks_sent, part.size());
    counters_.add(Counter::repair_bytes_sent, bytes);
    repairs_[asker].second += bytes;
  }
}

void GroupCore::say_not_have(Sequence sequence, Member asker, uint32_t id, Member root,
                             std::span<const ChunkRange> ranges, bool coming) {
  if (!coming) counters_.add(Counter::not_have_sent);
  wire::Writer body;
  wire::put_ranges(body, root, ranges);
  send_frame(asker, Channel::kControl,
             coming ? wire::FrameType::kComing : wire::FrameType::kNotHave, sequence, id,
             body.bytes());
}

void GroupCore::on_fetch_data(const Frame& header, ConstBytes body, Nanos now) {
  Operation* op = find(header.sequence);
  wire::FetchData data;
  if (!wire::parse_fetch_data(body, data)) {
    counters_.add(Counter::malformed);
    return;
  }
  if (op == nullptr || op->local_complete || !op->fetch) {
    counters_.add(Counter::stale);
    return;
  }
  const auto slot = op->slot_of(data.root);
  if (!slot || data.range.end > op->plan.chunks ||
      data.payload.size() != op->plan.length(data.range)) {
    counters_.add(Counter::malformed);
    return;
  }
  // A late answer is one of a request that was given up; a false one settles nothing.
  if (!accept_repair(*op, *slot, header.member, header.argument, data.range, data.payload, now)) {
    counters_.add(Counter::stale);
  }
}

bool GroupCore::accept_repair(Operation& op, uint32_t slot, Member donor, uint32_t id,
                              ChunkRange range, ConstBytes payload, Nanos now) {
  repairs_[donor].first += payload.size();
  repair_heard_[donor] = now;
  ops_.touch(op);
  size_t offset = 0;
  for (Chunk c = range.first; c < range.end; c++) {
    const size_t length = op.plan.length(c);
    if (place(op, slot, c, payload.subspan(offset, length), false, now)) {
      counters_.add(Counter::repair_chunks_received);
    }
    offset += length;
  }
  return op.fetch->on_data(id, donor, op.member_of(slot), range, now);
}

void GroupCore::on_not_have(const Frame& header, ConstBytes body, Nanos now) {
  const bool coming = header.type == wire::FrameType::kComing;
  if (!coming) counters_.add(Counter::not_have_received);
  Operation* op = find(header.sequence);
  Member root;
  if (!wire::parse_ranges(body, root, ranges_)) {
    counters_.add(Counter::malformed);
    return;
  }
  if (op == nullptr || op->local_complete || !op->fetch) {
    counters_.add(Counter::stale);
    return;
  }
  const std::vector<ChunkRange> ranges = ranges_;
  for (const ChunkRange& r : ranges) {
    if (!op->slot_of(root) || r.end > op->plan.chunks) {
      counters_.add(Counter::malformed);
      return;
    }
  }
  repair_heard_[header.member] = now;
  ops_.touch(*op);
  if (!op->fetch->on_not_have(header.argument, header.member, root, ranges, coming, now)) {
    counters_.add(Counter::stale);
  }
}

}  // namespace mcast
