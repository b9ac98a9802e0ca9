// From multicast to the ring in the middle of a group's life. A member that has gone deaf tells the
// top, the top starts the switch: every member stops starting operations ("frozen") and answers
// with the number of operations it has started; the top takes the largest, S, and announces that
// operations from S on use the ring. Operations below S end as they began, by repair if need be. So
// all members draw the line at the same operation, although some had called further ahead than
// others.
#include <algorithm>

#include "base/log.h"
#include "collective/group_core.h"

namespace mcast {

void GroupCore::judge_hearing(const Operation& op, Nanos now) {
  if (path_ != Path::kMulticast || ring_from_ || frozen_) return;
  for (uint32_t slot = 0; slot < op.receivers.size(); slot++) {
    if (op.own_slot == slot) continue;
    const Member root = op.member_of(slot);
    if (!deafness_.on_stream(root, op.plan.chunks, op.receivers[slot].heard_live())) continue;
    const std::string why = "rank " + std::to_string(self_) +
                            " no longer hears the multicast of rank " + std::to_string(root);
    if (tree_.is_top(self_)) {
      begin_switch(why, now);
    } else {
      wire::Writer body;
      body.put_text(why);
      send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kDeaf, 0, 0, body.bytes());
    }
    return;
  }
}

void GroupCore::begin_switch(const std::string& why, Nanos now) {
  if (path_ != Path::kMulticast || ring_from_ || frozen_) return;
  if (params_.require_multicast) {
    fail(Status(Code::kUnavailable, why + "; MCAST_ALGORITHM=multicast forbids the ring"),
         kNoMember, now);
    return;
  }
  freeze(why, now);
}

void GroupCore::freeze(const std::string& why, Nanos now) {
  frozen_ = true;
  switch_reason_ = why;
  switch_waiting_ = tree_.children(self_);
  switch_at_ = next_;
  wire::Writer body;
  body.put_text(why);
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(tree_.first_child(self_) + c), Channel::kControl,
               wire::FrameType::kSwitch, 0, 0, body.bytes());
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

void GroupCore::draw_line(Sequence first_by_ring, Nanos now) {
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(tree_.first_child(self_) + c), Channel::kControl,
               wire::FrameType::kSwitchAt, first_by_ring, 0);
  }
  ring_from_ = first_by_ring;
  path_reason_ = "switched at operation " + std::to_string(first_by_ring) + ": " + switch_reason_;
  counters_.add(Counter::path_switches);
  port_.reach_lost();
  if (tree_.is_top(self_)) {
    log(LogLevel::kWarn, "group '%s' goes on by the unicast ring: %s", params_.name.c_str(),
        path_reason_.c_str());
  }
  frozen_ = false;
  if (on_path_change_) on_path_change_("ring", path_reason_);
  auto deferred = std::exchange(deferred_, {});
  for (Post& p : deferred) post(std::move(p), now);
}

void GroupCore::on_switch_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  const bool from_parent = !tree_.is_top(self_) && header.member == tree_.parent(self_);
  const std::string text(wire::Reader(body).rest_text().substr(0, 300));
  if (header.type == FrameType::kDeaf && tree_.is_top(self_)) {
    begin_switch(text, now);
  } else if (header.type == FrameType::kSwitch && from_parent) {
    if (!frozen_ && !ring_from_) freeze(text, now);
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
