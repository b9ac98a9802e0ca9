// Failure: whoever finds one (a dead stream, silence, a deadline, a mismatch, an abort) fails the
// whole group once, tells its tree and ring neighbours and everybody by one multicast, and poisons
// later calls; a member that is told does the same, so the news floods. Deadlines ask first: the
// top queries where every rank is, so that the error names those who have not made the call.
#include <algorithm>

#include "collective/group_core.h"
#include "collective/report.h"

namespace mcast {
namespace {

constexpr Nanos kInquiry = kSecond;  // patience for answers to "where are you"
constexpr Nanos kServe = kSecond;    // after one was lost: the others may still need repairs

}  // namespace

std::string GroupCore::op_text(const Post& post, Nanos now) const {
  return describe_failed(post, params_.name, self_, now);
}

std::string GroupCore::unfinished_text(Nanos now) const {
  for (Sequence s = ops_.base(); s != ops_.next(); s++) {
    const Operation* const op = ops_.find(s);
    if (op != nullptr && !op->finished) return op_text(op->post, now);
  }
  return deferred_.empty() ? "" : op_text(deferred_.front(), now);
}

void GroupCore::fail(const Status& why, Member culprit, Nanos now) {
  if (failed() || why.ok()) return;
  failure_ = why;
  if (on_failure_) on_failure_(why);
  if (size_ > 1) {
    wire::Writer body;
    wire::put_abort(body, {static_cast<uint8_t>(why.code()), culprit, self_, why.message()});
    counters_.add(Counter::aborts_sent);
    // The culprit too: it may be alive (a damaged frame, a stopped process that goes on), and would
    // otherwise wait for the liveness limit once this member's group is gone.
    for (const Member m : liveness_.watched()) {
      send_frame(m, Channel::kControl, wire::FrameType::kAbort, ops_.base(), 0, body.bytes());
    }
    if (path_ == Path::kMulticast) {
      send_datagram(wire::DatagramType::kAbort, ops_.base(), 0, 0, body.bytes());
    }
  }
  // finish() runs callbacks, which may post again: walk by sequence.
  for (Sequence s = ops_.base(); s < ops_.next(); s++) {
    Operation* const op = find(s);
    if (op != nullptr && !op->finished) {
      finish(*op, failure_.with_context(op_text(op->post, now)), now);
    }
  }
  for (Post& p : std::exchange(deferred_, {})) {
    if (p.done) p.done(failure_.with_context(op_text(p, now)));
  }
  probe_.reset();
  if (auto ready = std::exchange(ready_, nullptr)) ready(failure_);
}

void GroupCore::fail_later(const Status& why, Nanos when) {
  if (failed() || suspicion_until_ != kNever) return;
  suspicion_ = why;
  suspicion_until_ = when;
}

void GroupCore::on_abort(const wire::AbortNotice& notice, Sequence released, Nanos now) {
  counters_.add(Counter::aborts_received);
  // The news of a failure may overtake that of success: what was complete everywhere stays so.
  if (!failed()) on_released(released, now);
  if (leaving_ && unfinished_ == 0) return;
  const bool known = notice.code > 0 && notice.code <= static_cast<uint8_t>(Code::kInternal);
  fail(Status(known ? static_cast<Code>(notice.code) : Code::kAborted, notice.text), notice.culprit,
       now);
}

void GroupCore::on_peer_down(Member peer, const Status& why, bool graceful, Nanos now) {
  if (failed() || !gone_[peer].ok()) return;
  if (why.code() == Code::kResourceExhausted) {
    // Not that member's fault, and its log says nothing.
    gone_[peer] = Status(why.code(), "rank " + std::to_string(self_) + " cannot reach rank " +
                                         std::to_string(peer) + " (" + why.message() + ")");
    if (unfinished_ > 0 || probe_ || !deferred_.empty()) fail(gone_[peer], self_, now);
    return;
  }
  const std::string text =
      "rank " + std::to_string(peer) +
      (graceful ? " closed its connections" : " is lost (" + why.message() + ")") +
      "; look at its log for the first error";
  gone_[peer] = Status(Code::kPeerLost, text);
  // A peer whose end nobody waits for harms nothing until the next call. One that closed in order
  // knew everything of its own to be complete everywhere; that news comes down the tree and may be
  // slower than the goodbye.
  if (graceful && unfinished_ > 0 && !probe_) {
    if (departed_until_ != kNever) return;
    departed_ = peer;
    departed_until_ = now + params_.liveness_limit;
    return;
  }
  if (unfinished_ > 0 || probe_ || !deferred_.empty()) return fail(gone_[peer], peer, now);
  if (!graceful && !ops_.empty() && lost_until_ == kNever) {
    lost_ = peer;
    lost_until_ = now + kServe;
  }
}

void GroupCore::drive_liveness(Nanos now, bool drained) {
  std::vector<Member> ping;
  liveness_.due(now, ping);
  for (const Member m : ping) {
    counters_.add(Counter::pings_sent);
    // Names the oldest operation that is not over: calls that differ so that no data ever flows
    // (each takes the other for the root) are found out by this alone.
    wire::Writer body;
    const OperationQueue::Slot* const oldest = ops_.slot(ops_.base());
    if (oldest != nullptr) body.put<uint32_t>(oldest->hash);
    send_frame(m, Channel::kControl, wire::FrameType::kPing, ops_.base(), 0, body.bytes());
  }
  if (!drained) return;
  const Member silent = liveness_.silent(now);
  if (silent == kNoMember) return;
  if (!gone_[silent].ok()) return fail(gone_[silent], silent, now);  // it closed in order
  fail(Status(Code::kPeerLost, "rank " + std::to_string(silent) + " has been silent for " +
                                   seconds_text(liveness_.silence(silent, now)) +
                                   " (liveness limit " + seconds_text(params_.liveness_limit) +
                                   "); its process is stopped or its network is cut"),
       silent, now);
}

void GroupCore::check_deadlines(Nanos now) {
  if (now >= departed_until_) {
    departed_until_ = kNever;
    if (unfinished_ > 0) return fail(gone_[departed_], departed_, now);
  }
  if (now >= lost_until_) {
    lost_until_ = kNever;
    if (!ops_.empty()) return fail(gone_[lost_], lost_, now);
  }
  if (late_asked_) {
    // Over after all, here or (the top decides for all) everywhere: the limit was passed by a hair.
    const Operation* op = find(late_seq_);
    const bool over = tree_.is_top(self_)
                          ? late_seq_ < ops_.base()
                          : late_seq_ < ops_.next() && (op == nullptr || op->finished);
    if (over) {
      late_asked_ = false;
      late_until_ = kNever;
      where_.clear();
      // Time limits of the others count again.
      for (Sequence s = ops_.base(); s < ops_.next(); s++) {
        if (Operation* open = find(s)) ops_.touch(*open);
      }
    } else if (now >= late_until_) {
      name_late(now);
    }
  }
}

// The operation has passed its limit: where is everybody?
void GroupCore::inquire(const Operation& op, Nanos now) {
  if (late_asked_) return;
  const std::string what = " (" + op.plan.descriptor.to_string() + ") passed its time limit of " +
                           seconds_text(op.post.timeout);
  if (tree_.is_top(self_)) return on_late(op.post.sequence, what, now);
  late_asked_ = true;
  late_seq_ = op.post.sequence;
  late_until_ = now + 2 * kInquiry;
  late_what_ = what;
  wire::Writer body;
  body.put_text(what);
  send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kLate, op.post.sequence, 0,
             body.bytes());
}

void GroupCore::on_late(Sequence sequence, const std::string& what, Nanos now) {
  if (!tree_.is_top(self_) || !where_.empty()) return;
  late_what_ = what;
  late_asked_ = true;
  late_seq_ = sequence;
  late_until_ = now + kInquiry;
  where_.assign(size_, -1);
  where_[self_] = next_sequence() > sequence ? 1 : 0;
  flood(wire::FrameType::kQuery, sequence, 0, {}, kNoMember);
  if (size_ == 1) name_late(now);
}

void GroupCore::on_where(const Frame& header, Nanos now) {
  if (where_.empty() || header.sequence != late_seq_) return;
  where_[header.member] = header.argument > late_seq_ ? 1 : 0;
  const auto some = [this](int w) {
    return std::find(where_.begin(), where_.end(), w) != where_.end();
  };
  // With everybody in, the transfer gets the rest of the inquiry's time to end.
  if (!some(-1) && some(0)) name_late(now);
}

void GroupCore::name_late(Nanos now) {
  std::string late, unresponsive;
  Member culprit = kNoMember;
  const auto name = [&culprit](std::string& list, size_t m) {
    if (culprit == kNoMember) culprit = static_cast<Member>(m);
    list += (list.empty() ? "" : ", ") + std::to_string(m);
  };
  for (size_t m = 0; m < where_.size(); m++) {
    if (where_[m] == 0) name(late, m);
    if (where_[m] < 0) name(unresponsive, m);
  }
  std::string text = "operation " + std::to_string(late_seq_) + late_what_ + ": ";
  if (!late.empty()) text += "rank(s) " + late + " have not called it";
  if (!unresponsive.empty())
    text += std::string(late.empty() ? "" : "; ") + "rank(s) " + unresponsive +
            " have not answered for " + seconds_text(kInquiry);
  if (late.empty() && unresponsive.empty()) {
    text += where_.empty() ? "rank 0, which asks where the others are, has not answered for " +
                                 seconds_text(2 * kInquiry)
                           : "all ranks have called it, the transfer did not finish in time";
  }
  text += "; check that all ranks make the same calls, or raise the timeout";
  fail(Status(Code::kTimeout, text), culprit, now);
}

bool GroupCore::early_allowed(const Frame& header, Nanos now) {
  const Sequence ahead = header.sequence - ops_.next();
  if (ahead < kFurthestAhead) return true;
  fail(Status(Code::kInternal, "rank " + std::to_string(header.member) + " is " +
                                   std::to_string(ahead) + " operations ahead of rank " +
                                   std::to_string(self_)),
       header.member, now);
  return false;
}

void GroupCore::describe_to(Member to, Sequence sequence) {
  const OperationQueue::Slot* const slot = ops_.slot(sequence);
  if (slot == nullptr || to == self_) return;
  wire::Writer body;
  wire::put_descriptor(body, slot->descriptor());
  send_frame(to, Channel::kControl, wire::FrameType::kDescribe, sequence, 0, body.bytes());
}

void GroupCore::on_describe(const Frame& header, ConstBytes body, Nanos now) {
  if (body.empty()) {
    if (header.argument < size_) describe_to(static_cast<Member>(header.argument), header.sequence);
    return;
  }
  wire::Descriptor theirs;
  if (!wire::parse_descriptor(body, theirs)) {
    counters_.add(Counter::malformed);
    return;
  }
  const OperationQueue::Slot* const slot = ops_.slot(header.sequence);
  if (slot == nullptr) {
    if (header.sequence >= ops_.next() && early_allowed(header, now)) {
      early_describe_[header.sequence] = {header.member, theirs};
    }
    return;
  }
  if (!theirs.same(slot->descriptor())) {
    mismatch(header.sequence, header.member, theirs.to_string(), now);
  }
}

void GroupCore::mismatch(Sequence sequence, Member other, const std::string& theirs, Nanos now) {
  const OperationQueue::Slot* const slot = ops_.slot(sequence);
  const std::string ours = slot != nullptr ? slot->descriptor().to_string() : "?";
  fail(differs(sequence, self_, ours, other, theirs), other, now);
}

void GroupCore::leave(Nanos) {
  if (leaving_ || failed()) return;
  leaving_ = true;
  left_[self_] = ops_.next();
  flood(wire::FrameType::kLeave, ops_.next(), self_, {}, kNoMember);
}

void GroupCore::on_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  if (header.member >= size_ || header.member == self_) {
    counters_.add(Counter::malformed);
    return;
  }
  counters_.add(Counter::frames_received);
  counters_.add(Counter::frame_bytes_received, wire::kFrameHeader + body.size());
  liveness_.heard(header.member, now);
  if (failed()) {
    // Whoever still talks to a failed group has not heard of the failure.
    if (header.type == FrameType::kPing) {
      wire::Writer notice;
      wire::put_abort(
          notice, {static_cast<uint8_t>(failure_.code()), kNoMember, self_, failure_.message()});
      send_frame(header.member, Channel::kControl, FrameType::kAbort, ops_.base(), 0,
                 notice.bytes());
    }
    return;
  }
  switch (header.type) {
    case FrameType::kCredit:
      return on_credit(header, body, now);
    case FrameType::kLimit:
      return on_limit(header, body, now);
    case FrameType::kFetch:
      return on_fetch(header, body, now);
    case FrameType::kFetchGrant:
      return on_fetch_grant(header, body, now);
    case FrameType::kFetchData:
      return on_fetch_data(header, body, now);
    case FrameType::kNotHave:
    case FrameType::kComing:
      return on_not_have(header, body, now);
    case FrameType::kComplete:
      return on_complete(header, body, now);
    case FrameType::kReleased:
      if (!tree_.is_top(self_) && header.member == tree_.parent(self_)) {
        return on_released(header.sequence, now);
      }
      break;
    case FrameType::kPing: {
      send_frame(header.member, Channel::kControl, FrameType::kPong, 0, 0);
      if (body.size() == 4 && ops_.slot(header.sequence) != nullptr) {
        agrees(header.member, header.sequence, wire::load<uint32_t>(body.data()));
      }
      return;
    }
    case FrameType::kPong:
      return;
    case FrameType::kAbort: {
      wire::AbortNotice notice;
      if (wire::parse_abort(body, notice)) return on_abort(notice, header.sequence, now);
      break;
    }
    case FrameType::kPosition:
      return on_position_frame(header, body, now);
    case FrameType::kSent:
      return on_sent_frame(header, body, now);
    case FrameType::kEarlyFetch:
      return on_early_fetch(header, body);
    case FrameType::kEarlyData:
      return on_early_data(header, body, now);
    case FrameType::kDescribe:
      return on_describe(header, body, now);
    case FrameType::kProbeJoined:
    case FrameType::kProbeStart:
    case FrameType::kProbeStatus:
    case FrameType::kProbeDone:
      return on_probe_frame(header, body, now);
    case FrameType::kRingReady:
      return on_ring_ready(header, now);
    case FrameType::kRingData:
      return on_ring_data(header, body, now);
    case FrameType::kLeave: {
      if (header.argument >= size_ || header.argument == self_) break;
      const auto member = static_cast<Member>(header.argument);
      left_[member] = std::min(left_[member], header.sequence);
      flood(FrameType::kLeave, header.sequence, header.argument, {}, header.member);
      if (ops_.next() > header.sequence && unfinished_ > 0) {
        fail(Status(Code::kClosed, "rank " + std::to_string(member) +
                                       " left the group without calling operation " +
                                       std::to_string(header.sequence)),
             member, now);
      }
      return;
    }
    case FrameType::kLate:
      return on_late(header.sequence, std::string(wire::Reader(body).rest_text()), now);
    case FrameType::kQuery:
      send_frame(Tree::kTop, Channel::kControl, FrameType::kWhere, header.sequence,
                 next_sequence());
      return flood(FrameType::kQuery, header.sequence, 0, {}, header.member);
    case FrameType::kWhere:
      return on_where(header, now);
    case FrameType::kDeaf:
    case FrameType::kSwitch:
    case FrameType::kSwitchReady:
    case FrameType::kSwitchAt:
      return on_switch_frame(header, body, now);
    case FrameType::kReduceGrant:
    case FrameType::kReduceData:
    case FrameType::kReduceResult:
    case FrameType::kReduceOffer:
    case FrameType::kReduceTaken:
      return on_reduce_frame(header, body, now);
  }
  counters_.add(Counter::malformed);
}

}  // namespace mcast
