// Small operations are complete here at once: their roots keep a copy for repair, so the caller's
// memory is needed only until the block has been copied. Large ones keep their machines until the
// control tree has released them, so that every rank can serve as a donor.
#include "collective/movements/multicast_streams.h"

#include <algorithm>

namespace mcast {
namespace {

bool sending(const Operation& op) {
  return op.own.sender && (!op.own.sender->all_sent() || op.own.sender->resending());
}

}  // namespace

void MulticastStreams::start(Operation& op, Nanos now) {
  const GroupParams& params = parts_.context.params;
  op.start_streams({op.plan.tolerance, params.alpha});
  parts_.sources.start(op);
  parts_.repair.start(op);
  parts_.multicast.start(op);
  if (op.plan.small) {
    if (op.own.stream) parts_.small.add(op);
    parts_.small.learn_sent(op, now);
  }
  parts_.reception.replay_staged(op, now);
  parts_.placing.start(op);
}

bool MulticastStreams::pump(Operation& op, Nanos now, bool drained) {
  if (!op.local_complete && op.receiving > 0) parts_.repair.drive(op, now, drained);
  if (op.flow.credit && !op.finished) parts_.multicast.drive_credit(op, now);
  if (!op.own.sender) return false;
  bool more = false;
  // Requests are handled first: chunks to be multicast again are sent with this visit's chunks.
  // Later, they would wait until something else woke the lane, because a sender with data to send
  // arms no timer.
  parts_.repair.serve(op, now);
  // Small operations are sent elsewhere, in order; only retransmissions are sent here.
  if (!op.plan.small || op.own.sender->resending()) more = parts_.multicast.pump(op, now);
  if (!op.plan.small) parts_.multicast.announce(op, now);
  return more;
}

bool MulticastStreams::busy(const Operation& op) const {
  return !op.plan.small && (!op.local_complete || sending(op));
}

Nanos MulticastStreams::deadline(const Operation& op) const {
  Nanos next = kNever;
  if (op.own.sender && !op.plan.small) {
    next = std::min(op.own.sender->deadline(), op.own.turn_retry);
  }
  if (op.own.repairs) next = std::min(next, op.own.repairs->deadline());
  // As in pump(): a deadline without an action would make the lane spin.
  if (op.local_complete || op.receiving == 0) return next;
  next = std::min(next, op.fetch->deadline());
  for (const uint32_t stream : op.flow.active.list()) {
    next = std::min(next, op.receivers[stream].deadline());
  }
  return next;
}

bool MulticastStreams::complete(const Operation& op) const {
  if (op.receiving > 0) return false;
  if (!parts_.placing.retired(op) || parts_.repair.reading(op)) return false;
  if (!parts_.sources.verified(op)) return false;
  // A small block is in the caller's memory until it has been copied.
  return !op.own.sender || !op.plan.small || op.own.started;
}

bool MulticastStreams::settled(const Operation& op) const {
  return !op.own.sender || !op.plan.small || (!sending(op) && !op.own.repairs->used());
}

}  // namespace mcast
