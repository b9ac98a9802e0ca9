// Completion on the control tree. Reports are cumulative (protocol/completion.h): each member
// reports the end of the operations that are complete in its subtree, with hashes of the calls. The
// top announces the end of those that are complete everywhere; released operations leave the queue.
#include <algorithm>

#include "collective/completion_reports.h"

namespace mcast {
namespace {

constexpr Nanos kReportDelay = 500 * kMicro;

}  // namespace

CompletionReports::CompletionReports(GroupContext& context)
    : g_(context),
      tracker_(g_.tree.children(g_.self), g_.tree.is_top(g_.self), kReportDelay,
               g_.params.first_sequence) {}

void CompletionReports::on_post(Sequence sequence, uint32_t hash) {
  if (const auto child = tracker_.on_post(sequence, hash)) {
    g_.describe_to(static_cast<Member>(g_.first_child() + *child), sequence);
  }
}

void CompletionReports::complete_own(Sequence end, bool urgent, Nanos now) {
  tracker_.complete_own(end, urgent, now);
  if (g_.tree.is_top(g_.self)) on_released(tracker_.subtree_complete());
}

void CompletionReports::report(Nanos now) {
  CompletionTracker::Up up;
  if (!tracker_.report_due(now, up)) return;
  wire::Writer body;
  wire::put_hashes(body, up.hashes);
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kComplete, up.end,
                up.first, body.bytes());
}

void CompletionReports::on_complete(const Frame& header, ConstBytes body, Nanos now) {
  std::vector<uint32_t> hashes;
  if (!g_.tree.is_child(header.member, g_.self) || !wire::parse_hashes(body, hashes)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  Sequence where = 0;
  uint32_t other = CompletionTracker::kOwn;
  switch (tracker_.on_child(g_.tree.child_index(header.member), header.sequence, header.argument,
                            hashes, where, other, now)) {
    case CompletionTracker::Report::kOk:
      if (g_.tree.is_top(g_.self)) on_released(tracker_.subtree_complete());
      break;
    case CompletionTracker::Report::kInvalid:
      g_.counters.add(Counter::malformed);
      break;
    case CompletionTracker::Report::kMismatch:
      g_.counters.add(Counter::mismatched);
      if (other == CompletionTracker::kOwn) {
        g_.describe_to(header.member, where);
      } else {
        // Not posted here yet: makes one of the two children describe its call to the other.
        g_.send_frame(static_cast<Member>(g_.tree.first_child(g_.self) + other), Channel::kControl,
                      wire::FrameType::kDescribe, where, header.member);
      }
      break;
  }
}

void CompletionReports::on_released(Sequence end) {
  end = std::min(end, tracker_.own_complete());
  if (tracker_.on_released(end)) g_.send_to_children(wire::FrameType::kReleased, end, 0);
}

void CompletionReports::on_released_frame(const Frame& header) {
  if (g_.from_parent(header.member)) return on_released(header.sequence);
  g_.counters.add(Counter::malformed);
}

}  // namespace mcast
