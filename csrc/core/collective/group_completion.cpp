// Completion on the control tree. It is cumulative (protocol/completion.h): each member reports how
// far its subtree is, with the hashes of what was called; the top says what is complete everywhere,
// and what is released leaves the queue.
#include <algorithm>

#include "collective/group_core.h"

namespace mcast {

void GroupCore::report_complete(Nanos now) {
  CompletionTracker::Up up;
  if (!completion_.report_due(now, up)) return;
  wire::Writer body;
  wire::put_hashes(body, up.hashes);
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kComplete, up.end,
                up.first, body.bytes());
}

void GroupCore::on_complete(const Frame& header, ConstBytes body, Nanos now) {
  std::vector<uint32_t> hashes;
  if (!g_.tree.is_child(header.member, g_.self) || !wire::parse_hashes(body, hashes)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  Sequence where = 0;
  uint32_t other = CompletionTracker::kOwn;
  switch (completion_.on_child(g_.tree.child_index(header.member), header.sequence, header.argument,
                               hashes, where, other, now)) {
    case CompletionTracker::Report::kOk:
      if (g_.tree.is_top(g_.self)) on_released(completion_.subtree_complete(), now);
      break;
    case CompletionTracker::Report::kInvalid:
      g_.counters.add(Counter::malformed);
      break;
    case CompletionTracker::Report::kMismatch:
      g_.counters.add(Counter::mismatched);
      if (other == CompletionTracker::kOwn) {
        g_.describe_to(header.member, where);
      } else {
        // Not called here yet: let the one tell the other.
        g_.send_frame(static_cast<Member>(g_.tree.first_child(g_.self) + other), Channel::kControl,
                      wire::FrameType::kDescribe, where, header.member);
      }
      break;
  }
}

void GroupCore::on_released(Sequence end, Nanos now) {
  end = std::min(end, completion_.own_complete());
  if (!completion_.on_released(end)) return;
  for (uint32_t c = 0; c < g_.tree.children(g_.self); c++) {
    g_.send_frame(static_cast<Member>(g_.tree.first_child(g_.self) + c), Channel::kControl,
                  wire::FrameType::kReleased, end, 0);
  }
  release(end, now);
}

}  // namespace mcast
