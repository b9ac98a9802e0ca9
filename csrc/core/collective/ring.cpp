// Broadcast and all-gather around the ring of members, for networks that block multicast, and the
// baseline of the benchmark.
//   1. Each member tells its predecessor that it has posted the operation; nothing is sent to it
//      before, so arriving data always has its place.
//   2. Every block travels from its root around the ring in segments: a member passes on what it
//   has
//      received in order, unless its successor is the block's root; all blocks in turn. The
//      transport's queue bounds what is in flight.
// Cost, n bytes in all, P members: every link carries n - n / P out and in (broadcast: n, all but
// the last member's out). For an all-gather this is the ring algorithm, for a broadcast a pipelined
// chain.
#include "collective/ring.h"

#include <algorithm>
#include <cstring>

namespace mcast {
namespace {

constexpr size_t kSegment = 60u << 10;
constexpr size_t kQueueLimit = 256u << 10;

}  // namespace

void Ring::start(Operation& op) {
  op.ring.resize(op.plan.roots);
  if (op.own_slot) op.ring[*op.own_slot].available = op.plan.block;
  g_.send_frame(predecessor(), Channel::kControl, wire::FrameType::kRingReady, op.post.sequence,
                op.plan.hash);
}

bool Ring::forwarded(const Operation& op) const {
  for (uint32_t slot = 0; slot < op.ring.size(); slot++) {
    if (op.member_of(slot) != successor() && op.ring[slot].forwarded < op.plan.block) return false;
  }
  return true;
}

void Ring::on_ready(Operation& op) {
  op.ring_open = true;
  g_.ops.touch(op);
}

bool Ring::pump(Operation& op) {
  if (!op.ring_open || op.local_complete) return false;
  const auto slots = static_cast<uint32_t>(op.ring.size());
  uint32_t idle = 0;
  bool full = false;
  while (idle < slots) {
    if (g_.port.queued(successor(), Channel::kRepair) >= kQueueLimit) {
      full = true;
      break;
    }
    const uint32_t slot = op.ring_next;
    op.ring_next = (op.ring_next + 1) % slots;
    RingStream& stream = op.ring[slot];
    uint64_t end = stream.available;
    if (op.own_slot == slot) end = std::min(end, op.readable());
    if (op.member_of(slot) == successor() || stream.forwarded >= end) {
      idle++;
      continue;
    }
    idle = 0;
    const size_t length = std::min<uint64_t>(kSegment, end - stream.forwarded);
    wire::Writer head;
    wire::put_ring_head(head, op.member_of(slot), stream.forwarded);
    g_.send_frame(successor(), Channel::kRepair, wire::FrameType::kRingData, op.post.sequence,
                  op.plan.hash, head.bytes(), op.source(slot).subspan(stream.forwarded, length));
    g_.counters.add(Counter::ring_bytes_sent, length);
    stream.forwarded += length;
  }
  g_.may_be_complete(op);
  // A full queue drains without us being told at once; look again soon.
  return full && g_.port.queued(successor(), Channel::kRepair) < kQueueLimit;
}

void Ring::on_data(const Frame& header, ConstBytes body, Nanos now) {
  Operation* op = g_.find(header.sequence);
  wire::RingData data;
  const auto slot = op != nullptr && wire::parse_ring_data(body, data) && !op->ring.empty()
                        ? op->slot_of(data.root)
                        : std::nullopt;
  if (!slot || slot == op->own_slot || header.member != predecessor() ||
      header.argument != op->plan.hash || op->local_complete ||
      data.offset != op->ring[*slot].available ||
      data.payload.size() > op->plan.block - data.offset) {
    g_.counters.add(Counter::malformed);
    g_.fail(Status(Code::kInternal, "rank " + std::to_string(header.member) +
                                        " broke the ring protocol at operation " +
                                        std::to_string(header.sequence)),
            header.member);
    return;
  }
  std::memcpy(op->destination(*slot) + data.offset, data.payload.data(), data.payload.size());
  op->first_byte = std::min(op->first_byte, now);
  op->last_byte = now;
  op->ring[*slot].available += data.payload.size();
  g_.ops.touch(*op);
  if (!op->final_to.empty()) {
    op->raise_completed(*slot, data.offset, op->ring[*slot].available);
  }
  if (op->ring[*slot].available == op->plan.block) {
    op->receiving--;
    g_.may_be_complete(*op);
  }
}

}  // namespace mcast
