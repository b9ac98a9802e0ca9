// From multicast to the ring in the middle of a group's life, and back. A member that hears nothing
// of another tells the top, which asks all (path_check.cpp) and, where they do not hear each other,
// starts the switch: every member stops starting operations ("frozen") and answers with the number
// of operations it has started; the top takes the largest, S, and announces that operations from S
// on use the other path. Operations below S end as they began, by repair if need be. So all members
// draw the line at the same operation, although some had called further ahead than others.
#include <algorithm>

#include "base/log.h"
#include "collective/group_core.h"

namespace mcast {

void GroupCore::judge_hearing(const Operation& op, Nanos now) {
  if (on_ring() || check_ || frozen_) return;
  if (op.late) return;  // this rank was not there to hear it, or its socket was full
  for (uint32_t slot = 0; slot < op.receivers.size(); slot++) {
    if (op.own_slot == slot) continue;
    const Member root = op.member_of(slot);
    if (!reachability_.on_stream(root, op.post.sequence, op.plan.chunks,
                                 op.receivers[slot].heard_live()))
      continue;
    const std::string why = "rank " + std::to_string(self_) +
                            " no longer hears the multicast of rank " + std::to_string(root);
    if (tree_.is_top(self_)) {
      suspect_path(why, now);
    } else {
      wire::Writer body;
      body.put_text(why);
      send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kDeaf, 0, 0, body.bytes());
    }
    return;
  }
}

void GroupCore::suspect_path(const std::string& why, Nanos now) {
  if (!on_ring()) start_check(now, why);
}

void GroupCore::begin_switch(bool to_ring, const std::string& why, Nanos now) {
  if (to_ring && params_.require_multicast) {
    fail(Status(Code::kUnavailable, why + "; MCAST_ALGORITHM=multicast forbids the ring"),
         kNoMember, now);
    return;
  }
  freeze(to_ring, why, now);
}

void GroupCore::freeze(bool to_ring, const std::string& why, Nanos now) {
  frozen_ = true;
  to_ring_ = to_ring;
  switch_reason_ = why;
  switch_waiting_ = tree_.children(self_);
  switch_at_ = ops_.next();
  wire::Writer body;
  body.put_text(why);
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(tree_.first_child(self_) + c), Channel::kControl,
               wire::FrameType::kSwitch, 0, to_ring ? 0 : 1, body.bytes());
  }
  if (switch_waiting_ == 0) switch_answered(now);
}

void GroupCore::switch_answered(Nanos now) {
  if (tree_.is_top(self_)) {
    draw_line(switch_at_, now);
  } else {
    send_frame(tree_.parent(self_), Channel::kControl, wire::FrameType::kSwitchReady, 0,
               switch_at_);
  }
}

void GroupCore::draw_line(Sequence first, Nanos now) {
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(tree_.first_child(self_) + c), Channel::kControl,
               wire::FrameType::kSwitchAt, first, 0);
  }
  std::erase_if(turns_, [first](const PathTurn& t) { return t.from >= first; });
  turns_.push_back({first, to_ring_});
  path_reason_ = "switched at operation " + std::to_string(first) + ": " + switch_reason_;
  counters_.add(Counter::path_switches);
  to_ring_ ? port_.reach_lost() : port_.reach_proven(now);
  if (tree_.is_top(self_)) {
    log(LogLevel::kWarn, "group '%s' goes on by %s: %s", params_.name.c_str(),
        to_ring_ ? "the unicast ring" : "multicast", path_reason_.c_str());
  }
  frozen_ = false;
  if (on_path_change_) on_path_change_(to_ring_ ? "ring" : "multicast", path_reason_);
  admit_deferred(now);
}

void GroupCore::on_switch_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  const bool from_parent = !tree_.is_top(self_) && header.member == tree_.parent(self_);
  const std::string text(wire::Reader(body).rest_text().substr(0, 300));
  if (header.type == FrameType::kDeaf && tree_.is_top(self_)) {
    suspect_path(text, now);
  } else if (header.type == FrameType::kSwitch && from_parent && header.argument <= 1) {
    if (!frozen_) freeze(header.argument == 0, text, now);
  } else if (header.type == FrameType::kSwitchReady && tree_.is_child(header.member, self_) &&
             frozen_ && switch_waiting_ > 0) {
    switch_at_ = std::max(switch_at_, header.argument);
    if (--switch_waiting_ == 0) switch_answered(now);
  } else if (header.type == FrameType::kSwitchAt && from_parent && frozen_) {
    draw_line(header.sequence, now);
  } else {
    counters_.add(Counter::malformed);
  }
}

}  // namespace mcast
