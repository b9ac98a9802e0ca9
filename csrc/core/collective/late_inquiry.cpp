// A rank whose operation passes its limit starts an inquiry: member 0 queries the position of every
// rank, so that the error names those that have not made the call. If all have made it, the
// transfer may use the rest of the inquiry's time to complete.
#include "collective/late_inquiry.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "collective/error_text.h"

namespace mcast {
namespace {

constexpr Nanos kInquiry = kSecond;  // time that the top waits for positions
// Time that a rank waits for the top, which may have to end another inquiry first.
constexpr Nanos kTopAnswers = 3 * kInquiry;

}  // namespace

// The operation has passed its limit: starts the inquiry.
void LateInquiry::start(const Post& post, Nanos now) {
  if (sources_.fail_without_digest(post.sequence)) return;
  start(post.sequence, post.descriptor, post.timeout, now);
}

void LateInquiry::start_unconfirmed(Nanos now) {
  if (now < closing_deadline()) return;
  const OperationQueue::Entry& oldest = *g_.ops.entry(g_.ops.base());
  const wire::Descriptor what = oldest.op ? oldest.op->post.descriptor : oldest.descriptor();
  start(g_.ops.base(), what, g_.leaving.timeout, now);
}

void LateInquiry::start(Sequence sequence, const wire::Descriptor& descriptor, Nanos limit,
                        Nanos now) {
  if (asked_) return;
  const std::string what =
      " (" + descriptor.to_string() + ") passed its time limit of " + seconds_text(limit);
  if (g_.tree.is_top(g_.self)) return ask_all(sequence, what, now);
  asked_ = true;
  sequence_ = sequence;
  until_ = now + kTopAnswers;
  what_ = what;
  wire::Writer body;
  body.put_text(what);
  g_.send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kLate, sequence, 0, body.bytes());
}

void LateInquiry::check_deferred(Nanos now) {
  if (now < deferred_deadline()) return;
  deferred_until_ = kNever;
  for (const Post& post : g_.deferred) {
    if (now >= post.deadline()) start(post, now);
    on_deferred(post);
  }
}

void LateInquiry::on_late(const Frame& header, ConstBytes body, Nanos now) {
  ask_all(header.sequence, std::string(wire::Reader(body).rest_text()), now);
}

void LateInquiry::on_query(const Frame& header, Nanos now) {
  sources_.on_query(header.sequence, now);
  g_.send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kWhere, header.sequence,
                g_.next_sequence());
  g_.flood(wire::FrameType::kQuery, header.sequence, 0, {}, header.member);
}

void LateInquiry::check(Nanos now) {
  if (!asked_) return;
  // The operation completed just after its limit, here or (the top decides for all) everywhere.
  const Operation* const op = g_.find(sequence_);
  const bool confirmed = g_.tree.is_top(g_.self) || (g_.leaving.closing && now >= g_.leaving.limit);
  const bool over = confirmed ? sequence_ < g_.ops.base()
                              : sequence_ < g_.ops.next() && (op == nullptr || op->finished);
  if (!over) {
    if (now >= until_) name_late(now);
    return;
  }
  asked_ = false;
  until_ = kNever;
  where_.clear();
  // The time limits of the other operations apply again.
  for (Sequence s = g_.ops.base(); s < g_.ops.next(); s++) {
    if (Operation* const open = g_.find(s)) g_.ops.touch(*open);
  }
  ask_next(now);
}

void LateInquiry::ask_all(Sequence sequence, std::string what, Nanos now) {
  if (!g_.tree.is_top(g_.self)) return;
  if (!where_.empty()) {
    if (sequence != sequence_) waiting_.emplace(sequence, std::move(what));
    return;
  }
  what_ = std::move(what);
  asked_ = true;
  sequence_ = sequence;
  until_ = now + kInquiry;
  where_.assign(g_.size, -1);
  where_[g_.self] = g_.next_sequence() > sequence ? 1 : 0;
  g_.flood(wire::FrameType::kQuery, sequence, 0, {}, kNoMember);
  if (g_.size == 1) name_late(now);
}

// Starts the next pending inquiry whose operation is still unfinished.
void LateInquiry::ask_next(Nanos now) {
  while (!waiting_.empty() && !asked_) {
    auto next = waiting_.extract(waiting_.begin());
    if (next.key() >= g_.ops.base()) ask_all(next.key(), std::move(next.mapped()), now);
  }
}

void LateInquiry::on_where(const Frame& header, Nanos now) {
  if (where_.empty() || header.sequence != sequence_) return;
  where_[header.member] = header.argument > sequence_ ? 1 : 0;
  const auto some = [this](int w) {
    return std::find(where_.begin(), where_.end(), w) != where_.end();
  };
  // If all ranks have posted, the transfer may use the rest of the inquiry's time to complete.
  if (!some(-1) && some(0)) name_late(now);
}

void LateInquiry::name_late(Nanos now) {
  if (sources_.fail_without_digest(sequence_)) return;
  std::vector<Member> late, unresponsive;
  Member culprit = kNoMember;
  for (size_t m = 0; m < where_.size(); m++) {
    if (where_[m] > 0) continue;
    if (culprit == kNoMember) culprit = static_cast<Member>(m);
    (where_[m] == 0 ? late : unresponsive).push_back(static_cast<Member>(m));
  }
  std::string text = "operation " + std::to_string(sequence_) + what_ + ": ";
  if (!late.empty()) text += error_text<ErrorId::ranks_late>(ranks_text(late));
  if (!unresponsive.empty())
    text += std::string(late.empty() ? "" : "; ") + "rank(s) " + ranks_text(unresponsive) +
            " have not answered for " + seconds_text(kInquiry);
  if (late.empty() && unresponsive.empty()) {
    text += where_.empty()
                ? "rank 0, which collects the progress of all ranks, has not answered for " +
                      seconds_text(kTopAnswers)
                : "all ranks have called it, but the transfer did not finish in time";
  }
  const std::string awaited = g_.fold != nullptr ? g_.fold->waiting_text(sequence_, now) : "";
  if (!awaited.empty()) text += "; aggregators are waiting for " + awaited;
  text += "; check that all ranks make the same calls, or raise the timeout";
  g_.fail(Status(Code::kTimeout, text), culprit);
}

}  // namespace mcast
