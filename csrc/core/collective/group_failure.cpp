// Failure: a member that detects one (a dead stream, silence, a deadline, a mismatch, an abort)
// fails the whole group once, informs its tree and ring neighbours and all members by one
// multicast, and poisons later calls. A member that receives the news does the same, so it reaches
// all.
#include <utility>

#include "base/coverage.h"
#include "collective/group_core.h"

namespace mcast {
namespace {

static_assert(static_cast<uint8_t>(Path::kRing) == wire::kMostAbortPath);

void put_notice(wire::Writer& body, const GroupContext& g, Member culprit) {
  const Status& why = g.failure();
  wire::put_abort(body, {static_cast<uint8_t>(why.code()), culprit, g.self,
                         static_cast<uint8_t>(g.path.first), why.message()});
}

// An operation that has ended here may not have reached a late member at all.
std::string unconfirmed_text(const GroupContext& g) {
  const OperationQueue::Entry* const oldest = g.ops.entry(g.ops.base());
  if (oldest == nullptr || g.failed()) return "";
  const wire::Descriptor what = oldest->op ? oldest->op->post.descriptor : oldest->descriptor();
  return "operation " + std::to_string(g.ops.base()) + " (" + what.to_string() + ") of group '" +
         g.params.name + "' is over on rank " + std::to_string(g.self) +
         " and not confirmed by all ranks";
}

}  // namespace

std::string GroupCore::unfinished_text(Nanos now) const {
  for (Sequence s = g_.ops.base(); s != g_.ops.next(); s++) {
    const Operation* const op = g_.ops.find(s);
    if (op != nullptr && !op->finished) return g_.op_text(op->post, now);
  }
  if (!g_.deferred.empty()) return g_.op_text(g_.deferred.front(), now);
  const std::string message = messages_.unfinished_text();
  return message.empty() ? unconfirmed_text(g_) : message;
}

void GroupCore::fail(const Status& why, Member culprit, Nanos now) {
  g_.fail(why, culprit);
  settle(now);
}

void GroupCore::fail_early(Nanos now) {
  g_.drive_suspicion(kNever);
  settle(now);
}

void GroupCore::tell_failure(Nanos now) {
  const Status& why = g_.failure();
  if (g_.on_failure) g_.on_failure(why);
  if (g_.size > 1) {
    wire::Writer body;
    put_notice(body, g_, g_.culprit());
    g_.counters.add(Counter::aborts_sent);
    // Informs the culprit, too: it may be alive (a damaged frame, a stopped process that
    // continues), and would otherwise wait for the liveness limit once this member's group is gone.
    for (const Member m : membership_.watched()) {
      g_.send_frame(m, Channel::kControl, wire::FrameType::kAbort, g_.ops.base(), 0, body.bytes());
    }
    if (g_.path.first == Path::kMulticast) {
      g_.send_datagram(wire::DatagramType::kAbort, g_.ops.base(), 0, 0, body.bytes());
    }
  }
  for (Sequence s = g_.ops.base(); s < g_.ops.next(); s++) {
    Operation* const op = g_.find(s);
    if (op != nullptr && !op->finished)
      finish(*op, why.with_context(g_.op_text(op->post, now)), now);
  }
  for (Post& p : std::exchange(g_.deferred, {})) {
    if (p.done) g_.ended.emplace_back(std::move(p.done), why.with_context(g_.op_text(p, now)));
  }
  messages_.on_failure(why);
  path_.creation().give_up(why);
}

void GroupCore::on_abort(ConstBytes body, Sequence released, Nanos now) {
  wire::AbortNotice notice;
  if (!wire::parse_abort(body, notice)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  g_.counters.add(Counter::aborts_received);
  // The news of a failure may overtake that of success: operations complete everywhere remain so.
  if (completion_.released() < released) MCAST_COVER(abort_brings_the_release);
  completion_.on_released(released);
  settle(now);
  if (membership_.leaving() && g_.unfinished + messages_.unfinished() == 0) {
    MCAST_COVER(abort_after_leaving);
    return;
  }
  learn_path(static_cast<Path>(notice.path), now);
  const bool known = notice.code > 0 && notice.code <= static_cast<uint8_t>(Code::kInternal);
  g_.fail(Status(known ? static_cast<Code>(notice.code) : Code::kAborted, notice.text),
          notice.culprit);
}

// A peer that still sends to a failed group has not been informed of the failure.
void GroupCore::answer_failed(const Frame& header) {
  if (header.type != wire::FrameType::kPing) return;
  MCAST_COVER(failed_group_is_asked);
  wire::Writer notice;
  put_notice(notice, g_, kNoMember);
  g_.send_frame(header.member, Channel::kControl, wire::FrameType::kAbort, g_.ops.base(), 0,
                notice.bytes());
}

}  // namespace mcast
