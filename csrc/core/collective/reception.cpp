// Handles incoming multicast datagrams. A datagram is checked in this order: operation, block,
// chunk, whether it is new, checksum. Only then are its bytes copied to a region and its bit set
// (the placement rule), so that late, stale, repeated and corrupt datagrams can neither reach
// memory that was returned nor overwrite a good chunk. Data of an operation that is not posted here
// is staged. Chunks that a device has placed are checked by then, and only recorded.
#include "collective/reception.h"

#include <algorithm>
#include <bit>

#include "base/streaming_copy.h"

namespace mcast {

template <typename Verifier>
DatagramVerdict Reception::on_data(const wire::DatagramHeader& header, Verifier& datagram,
                                   Nanos now) {
  if (header.sequence < g_.ops.base()) {
    g_.counters.add(Counter::stale);
    return DatagramVerdict::kUnread;
  }
  Operation* op = g_.find(header.sequence);
  if (op == nullptr) return on_other_data(header, datagram, now);
  if (header.descriptor != op->plan.hash) {
    if (const DatagramVerdict verdict = datagram.verify(g_.counters);
        verdict != DatagramVerdict::kVerified) {
      return verdict;
    }
    g_.agrees(header.member, header.sequence, header.descriptor);
    return DatagramVerdict::kVerified;
  }
  const auto stream = op->stream_of(header.member);
  if (!stream || header.chunk >= op->plan.chunks ||
      datagram.size() != op->plan.length(header.chunk)) {
    g_.counters.add(Counter::malformed);
    return DatagramVerdict::kMalformed;
  }
  // (An operation that was revived for members that lack its block has no receivers.)
  if (op->local_complete || op->receivers.empty() || op->receivers[*stream].has(header.chunk)) {
    g_.counters.add(Counter::duplicates);
    return DatagramVerdict::kUnread;
  }
  if (const DatagramVerdict verdict = datagram.verify(g_.counters);
      verdict != DatagramVerdict::kVerified) {
    return verdict;
  }
  g_.ops.touch(*op);
  const bool in_order = header.in_order;
  enter(*op, *stream, header.chunk, datagram.payload(), true, now);
  if (in_order && !g_.failed()) small_.note_sent(header.member, header.sequence, now);
  return DatagramVerdict::kVerified;
}

size_t Reception::on_placed(Operation& op, Member root, uint32_t word, uint64_t bits, Nanos now) {
  const auto stream = op.stream_of(root);
  if (!stream || op.receivers.empty()) return 0;
  size_t bytes = 0;
  g_.ops.touch(op);
  for (; bits != 0; bits &= bits - 1) {
    const Chunk chunk = word * 64 + static_cast<Chunk>(std::countr_zero(bits));
    if (chunk >= op.plan.chunks) break;
    const size_t size = wire::kDatagramHeader + op.plan.length(chunk);
    g_.counters.add(Counter::datagrams_received);
    g_.counters.add(Counter::datagram_bytes_received, size);
    bytes += size;
    if (op.local_complete || op.receivers[*stream].has(chunk)) {
      g_.counters.add(Counter::duplicates);
    } else {
      arrived(op, *stream, chunk, true, now);
    }
  }
  if (op.plan.small) small_.note_sent(root, op.post.sequence, now);
  return bytes;
}

// Data of an operation that is not in flight here. Useless data is not verified. Otherwise an
// attacker who replays others' datagrams could make this rank verify all of them and accept them as
// data.
template <typename Verifier>
DatagramVerdict Reception::on_other_data(const wire::DatagramHeader& header, Verifier& datagram,
                                         Nanos now) {
  const OperationQueue::Entry* const settled = g_.ops.entry(header.sequence);
  const Staging::Key key{header.member, header.chunk};
  if (settled != nullptr ? settled->hash == header.descriptor
                         : staging_.holds(header.sequence, key)) {
    g_.counters.add(Counter::duplicates);
    return DatagramVerdict::kUnread;
  }
  if (settled == nullptr && header.sequence - g_.ops.next() > GroupContext::kFurthestAhead) {
    g_.counters.add(Counter::malformed);
    return DatagramVerdict::kMalformed;
  }
  if (const DatagramVerdict verdict = datagram.verify(g_.counters);
      verdict != DatagramVerdict::kVerified) {
    return verdict;
  }
  if (settled != nullptr) {
    g_.agrees(header.member, header.sequence, header.descriptor);
    return DatagramVerdict::kVerified;
  }
  path_.on_heard(header.member, header.sequence);
  if (header.in_order) small_.note_sent(header.member, header.sequence, now);
  return stage(header.sequence, key, header.descriptor, true, datagram.payload())
             ? DatagramVerdict::kVerified
             : DatagramVerdict::kUnread;  // no room: some member will send it again
}

template DatagramVerdict Reception::on_data(const wire::DatagramHeader&, ChecksumVerifier&, Nanos);
template DatagramVerdict Reception::on_data(const wire::DatagramHeader&, GuardVerifier&, Nanos);

void Reception::on_position_datagram(const wire::DatagramHeader& header, Nanos now) {
  path_.on_heard(header.member, header.sequence);
  if (!header.in_order) {
    on_position(header.sequence, header.member, header.descriptor, header.chunk, now);
    return;
  }
  g_.counters.add(Counter::positions_received);
  if (header.sequence > g_.ops.next() &&
      header.sequence - g_.ops.next() > GroupContext::kFurthestAhead) {
    g_.counters.add(Counter::malformed);
    return;
  }
  small_.note_sent(header.member, header.sequence, now);
}

void Reception::on_position(Sequence sequence, Member root, uint32_t descriptor, Chunk sent,
                            Nanos now) {
  g_.counters.add(Counter::positions_received);
  if (g_.ops.entry(sequence) != nullptr && !g_.agrees(root, sequence, descriptor)) return;
  Operation* op = g_.find(sequence);
  if (op == nullptr || op->local_complete || op->receivers.empty()) return;
  const auto stream = op->stream_of(root);
  if (!stream || stream == op->own.stream) return;
  op->receivers[*stream].on_position(sent, now);
  op->flow.active.add(*stream);
  g_.ops.touch(*op);
}

bool Reception::place(Operation& op, uint32_t stream, Chunk chunk, ConstBytes payload, bool live,
                      Nanos now) {
  if (op.local_complete || op.receivers[stream].has(chunk)) {
    g_.counters.add(Counter::duplicates);
    return false;
  }
  enter(op, stream, chunk, payload, live, now);
  return true;
}

void Reception::enter(Operation& op, uint32_t stream, Chunk chunk, ConstBytes payload, bool live,
                      Nanos now) {
  const size_t offset = static_cast<size_t>(chunk) * op.plan.chunk;
  if (op.post.landing) {
    op.post.landing->place(stream, offset, payload);
  } else {
    copy_result(op.destination(stream) + offset, payload.data(), payload.size(),
                op.plan.block * op.receivers.size());
  }
  arrived(op, stream, chunk, live, now);
}

void Reception::arrived(Operation& op, uint32_t stream, Chunk chunk, bool live, Nanos now) {
  BlockReceiver& receiver = op.receivers[stream];
  receiver.accept(chunk, live, now);
  op.flow.active.add(stream);
  if (op.first_byte == kNever) op.first_byte = now;
  op.last_byte = now;
  g_.counters.add(Counter::chunks_placed);
  sources_.on_chunk(op, stream, chunk);
  if (!op.final_to.empty() && op.final_to[stream] == chunk) {
    const auto bytes = [&op](Chunk c) {
      return std::min<uint64_t>(op.plan.block, static_cast<uint64_t>(c) * op.plan.chunk);
    };
    op.final_to[stream] = static_cast<Chunk>(receiver.bitmap().next_clear(chunk, op.plan.chunks));
    op.raise_completed(stream, bytes(chunk), bytes(op.final_to[stream]));
  }
  if (receiver.complete()) {
    op.receiving--;
    placing_.end(op, stream);
    g_.may_be_complete(op);
  }
}

bool Reception::stage(Sequence sequence, Staging::Key key, uint32_t descriptor, bool live,
                      ConstBytes payload) {
  switch (staging_.put(sequence, key, descriptor, live, payload)) {
    case Staging::Put::kStored:
      g_.counters.add(Counter::chunks_staged);
      return true;
    case Staging::Put::kDuplicate:
      g_.counters.add(Counter::duplicates);
      break;
    case Staging::Put::kFull:
      g_.counters.add(Counter::staging_drops);
      break;
  }
  return false;
}

void Reception::replay_staged(Operation& op, Nanos now) {
  for (auto& [key, entry] : staging_.take(op.post.sequence)) {
    const auto stream = op.stream_of(key.root);
    if (entry.descriptor != op.plan.hash) {
      g_.counters.add(Counter::mismatched);
      g_.describe_to(key.root, op.post.sequence);
    } else if (stream && stream != op.own.stream && key.chunk < op.plan.chunks &&
               entry.payload.size() == op.plan.length(key.chunk)) {
      place(op, *stream, key.chunk, entry.payload, entry.live, now);
    } else {
      g_.counters.add(Counter::malformed);
    }
  }
}

size_t Reception::headroom() const {
  constexpr uint64_t kParts = 8;  // of the window, so that credit continues meanwhile
  for (const Sequence s : g_.ops.busy()) {
    const Operation* const op = g_.ops.find(s);
    if (!op->plan.large || op->receiving == 0 || !op->fetch) continue;
    uint64_t coming = 0;
    uint32_t unheard = op->receiving;
    for (const uint32_t stream : op->flow.active.list()) {
      const BlockReceiver& r = op->receivers[stream];
      if (r.complete()) continue;
      coming += r.chunks() - r.high_water();
      unheard--;
    }
    coming += uint64_t{unheard} * op->plan.chunks;
    const uint64_t window = uint64_t{op->plan.window} * op->plan.chains;
    return coming < window ? 0 : window / kParts * op->plan.chunk;
  }
  return 0;
}

}  // namespace mcast
