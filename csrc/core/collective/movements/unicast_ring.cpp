// Broadcast and all-gather around the ring of members, for networks that block multicast, and the
// baseline of the benchmark.
//   1. Each member informs its predecessor that it has posted the operation. The predecessor sends
//      nothing before, so arriving data always has a destination.
//   2. Every block travels from its root around the ring in pieces. A member forwards data that it
//      has received in order, unless its successor is the block's root; blocks are served in turn.
//      The transport's queue limits the data in flight.
// Cost, n bytes in all, P members: every link sends and receives n - n / P (broadcast: n, except
// that the last member sends nothing). For an all-gather this is the ring algorithm, for a
// broadcast a pipelined chain.
#include "collective/movements/unicast_ring.h"
#include "base/coverage.h"

#include <algorithm>
#include <cstring>

namespace mcast {
namespace {

constexpr size_t kRingPiece = 60u << 10;
constexpr size_t kRingQueue = 256u << 10;

}  // namespace

void UnicastRing::start(Operation& op, Nanos) {
  op.start_streams({op.plan.tolerance, g_.params.alpha});
  sources_.start(op);
  op.ring.blocks.resize(op.plan.roots);
  if (op.own.stream) {
    op.ring.blocks[*op.own.stream].available = op.plan.block;
    list(op, *op.own.stream);
  }
  g_.send_frame(predecessor(), Channel::kControl, wire::FrameType::kRingReady, op.post.sequence,
                op.plan.hash);
}

// Lists the block, which has data to forward, unless the successor is its root.
void UnicastRing::list(Operation& op, uint32_t stream) const {
  RingBlock& block = op.ring.blocks[stream];
  if (block.listed || op.member_of(stream) == successor()) return;
  block.listed = true;
  op.ring.turns.push_back(stream);
}

bool UnicastRing::forwarded(const Operation& op) const {
  for (uint32_t stream = 0; stream < op.ring.blocks.size(); stream++) {
    if (op.member_of(stream) != successor() && op.ring.blocks[stream].forwarded < op.plan.block)
      return false;
  }
  return true;
}

void UnicastRing::pass_on(Operation& op, uint32_t stream, uint64_t end) {
  RingBlock& block = op.ring.blocks[stream];
  const size_t length = std::min<uint64_t>(kRingPiece, end - block.forwarded);
  wire::Writer head;
  wire::put_ring_head(head, op.member_of(stream), block.forwarded);
  g_.send_frame(successor(), Channel::kRepair, wire::FrameType::kRingData, op.post.sequence,
                op.plan.hash, head.bytes(), op.source(stream).subspan(block.forwarded, length));
  g_.counters.add(Counter::ring_bytes_sent, length);
  block.forwarded += length;
  if (op.own.stream == stream) sources_.on_sent(op, block.forwarded);
}

bool UnicastRing::complete(const Operation& op) const {
  return op.receiving == 0 && sources_.verified(op) && forwarded(op);
}

void UnicastRing::on_frame(Operation& op, const Frame& header, ConstBytes, Nanos) {
  if (header.member != successor()) return g_.counters.add(Counter::malformed);
  op.ring.open = true;
  g_.ops.touch(op);
}

bool UnicastRing::pump(Operation& op, Nanos, bool) {
  if (!op.ring.open || op.local_complete) return false;
  bool full = false;
  for (size_t idle = 0; idle < op.ring.turns.size();) {
    full = g_.port.queued(successor(), Channel::kRepair) >= kRingQueue;
    if (full) {
      MCAST_COVER(ring_queue_full);
      break;
    }
    const uint32_t stream = op.ring.turns.front();
    op.ring.turns.pop_front();
    RingBlock& block = op.ring.blocks[stream];
    block.listed = false;
    uint64_t end = block.available;
    if (op.own.stream == stream) end = std::min(end, op.readable());
    if (block.forwarded < end) {
      pass_on(op, stream, end);
      idle = 0;
    } else {
      idle++;
    }
    // Arriving data lists it again; no event reports that a staged source has become readable.
    if (block.forwarded < (op.own.stream == stream ? op.plan.block : end)) list(op, stream);
  }
  g_.may_be_complete(op);
  // A full queue drains without an immediate event, so check again soon.
  return full && g_.port.queued(successor(), Channel::kRepair) < kRingQueue;
}

void UnicastRing::on_data(const Frame& header, ConstBytes body, Nanos now) {
  Operation* op = g_.find(header.sequence);
  wire::RingData data;
  const auto stream = op != nullptr && wire::parse_ring_data(body, data) && !op->ring.blocks.empty()
                          ? op->stream_of(data.root)
                          : std::nullopt;
  if (!stream || stream == op->own.stream || header.member != predecessor() ||
      header.argument != op->plan.hash || op->local_complete ||
      data.offset != op->ring.blocks[*stream].available ||
      data.payload.size() > op->plan.block - data.offset) {
    g_.counters.add(Counter::malformed);
    g_.fail(Status(Code::kInternal, "rank " + std::to_string(header.member) +
                                        " broke the ring protocol at operation " +
                                        std::to_string(header.sequence)),
            header.member);
    return;
  }
  if (op->post.landing) {
    op->post.landing->place(*stream, data.offset, data.payload);
  } else {
    std::memcpy(op->destination(*stream) + data.offset, data.payload.data(), data.payload.size());
  }
  op->first_byte = std::min(op->first_byte, now);
  op->last_byte = now;
  op->ring.blocks[*stream].available += data.payload.size();
  sources_.on_bytes(*op, *stream, op->ring.blocks[*stream].available);
  list(*op, *stream);
  g_.ops.touch(*op);
  if (!op->final_to.empty()) {
    op->raise_completed(*stream, data.offset, op->ring.blocks[*stream].available);
  }
  if (op->ring.blocks[*stream].available == op->plan.block) {
    op->receiving--;
    g_.may_be_complete(*op);
  }
}

}  // namespace mcast
