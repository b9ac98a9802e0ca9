// The unicast path, for networks that block multicast, and the baseline of the benchmark. Every
// stream travels the ring of members from its root: a member passes on what it has received in
// order to its successor, unless that is the root, in segments, all streams in turn. A member sends
// nothing for an operation before its successor has said that it posted it, so arriving data always
// has its place; the transport's queue bounds what is in flight. For an allgather this is the ring
// algorithm, for a broadcast a pipelined chain.
#include <algorithm>
#include <cstring>

#include "collective/group_core.h"

namespace mcast {
namespace {
constexpr size_t kSegment = 60u << 10;
constexpr size_t kQueueLimit = 256u << 10;
}  // namespace

void GroupCore::start_ring(Operation& op, Nanos now) {
  op.ring.resize(op.plan.roots);
  if (op.own_slot) op.ring[*op.own_slot].available = op.plan.block;
  const auto predecessor = static_cast<Member>((self_ + size_ - 1u) % size_);
  send_frame(predecessor, Channel::kControl, wire::FrameType::kRingReady, op.post.sequence,
             op.plan.hash);
  if (const auto it = early_ring_.find(op.post.sequence); it != early_ring_.end()) {
    const Frame ready{wire::FrameType::kRingReady,
                      params_.lane,
                      static_cast<Member>((self_ + 1u) % size_),
                      params_.tag,
                      op.post.sequence,
                      it->second};
    early_ring_.erase(it);
    on_ring_ready(ready, now);
  }
}

void GroupCore::on_ring_ready(const Frame& header, Nanos now) {
  if (header.member != (self_ + 1u) % size_) {
    counters_.add(Counter::malformed);
    return;
  }
  Operation* op = find(header.sequence);
  if (op == nullptr) {
    if (ops_.slot(header.sequence) != nullptr) {
      agrees(header.member, header.sequence, header.argument);
    } else if (header.sequence >= ops_.next() && early_allowed(header, now)) {
      early_ring_[header.sequence] = header.argument;
    }
    return;
  }
  if (!agrees(header.member, header.sequence, header.argument)) return;
  op->ring_open = true;
  ops_.touch(*op);
}

bool GroupCore::pump_ring(Operation& op, Nanos now) {
  if (!op.ring_open || op.local_complete) return false;
  const auto successor = static_cast<Member>((self_ + 1u) % size_);
  const auto slots = static_cast<uint32_t>(op.ring.size());
  uint32_t idle = 0;
  bool full = false;
  while (idle < slots) {
    if (port_.queued(successor, Channel::kRepair) >= kQueueLimit) {
      full = true;
      break;
    }
    const uint32_t slot = op.ring_next;
    op.ring_next = (op.ring_next + 1) % slots;
    RingStream& stream = op.ring[slot];
    uint64_t end = stream.available;
    if (op.own_slot == slot) end = std::min(end, op.readable());
    if (op.member_of(slot) == successor || stream.forwarded >= end) {
      idle++;
      continue;
    }
    idle = 0;
    const size_t length = std::min<uint64_t>(kSegment, end - stream.forwarded);
    wire::Writer head;
    wire::put_ring_head(head, op.member_of(slot), stream.forwarded);
    send_frame(successor, Channel::kRepair, wire::FrameType::kRingData, op.post.sequence,
               op.plan.hash, head.bytes(), op.source(slot).subspan(stream.forwarded, length));
    counters_.add(Counter::ring_bytes_sent, length);
    stream.forwarded += length;
  }
  check_local(op, now);
  // A full queue drains without us being told at once; look again soon.
  return full && port_.queued(successor, Channel::kRepair) < kQueueLimit;
}

void GroupCore::on_ring_data(const Frame& header, ConstBytes body, Nanos now) {
  Operation* op = find(header.sequence);
  wire::RingData data;
  const auto slot = op != nullptr && wire::parse_ring_data(body, data) && !op->ring.empty()
                        ? op->slot_of(data.root)
                        : std::nullopt;
  if (!slot || slot == op->own_slot || header.member != (self_ + size_ - 1u) % size_ ||
      header.argument != op->plan.hash || op->local_complete ||
      data.offset != op->ring[*slot].available ||
      data.payload.size() > op->plan.block - data.offset) {
    counters_.add(Counter::malformed);
    fail(Status(Code::kInternal, "rank " + std::to_string(header.member) +
                                     " broke the ring protocol at operation " +
                                     std::to_string(header.sequence)),
         header.member, now);
    return;
  }
  std::memcpy(op->destination(*slot) + data.offset, data.payload.data(), data.payload.size());
  op->first_byte = std::min(op->first_byte, now);
  op->last_byte = now;
  op->ring[*slot].available += data.payload.size();
  ops_.touch(*op);
  if (!op->final_to.empty()) {
    op->raise_completed(*slot, data.offset, op->ring[*slot].available);
  }
  if (op->ring[*slot].available == op->plan.block) {
    op->receiving--;
    check_local(*op, now);
  }
}

}  // namespace mcast
