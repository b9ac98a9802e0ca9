// From multicast to the ring in the middle of a group's life, and back. A member that hears nothing
// of another tells the top, which asks all (path_check.cpp) and, where they do not hear each other,
// starts the switch: every member stops starting operations and answers with the number
// of operations it has started; the top takes the largest, S, and announces that operations from S
// on use the other path. Operations below S end as they began, by repair if need be. So all members
// draw the line at the same operation, although some had called further ahead than others.
#include "collective/path_switch.h"

#include <algorithm>

#include "base/log.h"

namespace mcast {

void PathSwitch::judge(const Operation& op, Nanos now) {
  if (g_.path.on_ring() || check_ || g_.switching()) return;
  if (op.late) return;  // this rank was not there to hear it, or its socket was full
  for (uint32_t stream = 0; stream < op.receivers.size(); stream++) {
    if (op.own.stream == stream) continue;
    const Member root = op.member_of(stream);
    if (!reachability_.on_stream(root, op.post.sequence, op.plan.chunks,
                                 op.receivers[stream].heard_live()))
      continue;
    const std::string why = "rank " + std::to_string(g_.self) +
                            " no longer hears the multicast of rank " + std::to_string(root);
    if (g_.tree.is_top(g_.self)) {
      suspect(why, now);
    } else {
      wire::Writer body;
      body.put_text(why);
      g_.send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kDeaf, 0, 0, body.bytes());
    }
    return;
  }
}

void PathSwitch::suspect(const std::string& why, Nanos now) {
  if (!g_.path.on_ring()) start_check(now, why);
}

void PathSwitch::begin(bool to_ring, const std::string& why, Nanos now) {
  if (to_ring && g_.params.multicast.required) {
    g_.fail(Status(Code::kUnavailable, why + "; MCAST_ALGORITHM=multicast forbids the ring"),
            kNoMember);
    return;
  }
  stop_starting(to_ring, why, now);
}

void PathSwitch::stop_starting(bool to_ring, const std::string& why, Nanos now) {
  g_.state = GroupState::kSwitching;
  to_ring_ = to_ring;
  reason_ = why;
  waiting_ = g_.tree.children(g_.self);
  line_ = g_.ops.next();
  wire::Writer body;
  body.put_text(why);
  g_.send_to_children(wire::FrameType::kSwitch, 0, to_ring ? 0 : 1, body.bytes());
  if (waiting_ == 0) answered(now);
}

void PathSwitch::answered(Nanos now) {
  if (g_.tree.is_top(g_.self)) {
    draw_line(line_, now);
  } else {
    g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kSwitchReady, 0,
                  line_);
  }
}

void PathSwitch::draw_line(Sequence first, Nanos now) {
  g_.send_to_children(wire::FrameType::kSwitchAt, first, 0);
  std::erase_if(g_.path.turns, [first](const GroupPath::Turn& t) { return t.from >= first; });
  g_.path.turns.push_back({first, to_ring_});
  g_.path.reason = "switched at operation " + std::to_string(first) + ": " + reason_;
  g_.counters.add(Counter::path_switches);
  to_ring_ ? g_.port.reach_lost() : g_.port.reach_proven(now);
  if (g_.tree.is_top(g_.self)) {
    log(LogLevel::kWarn, "group '%s' goes on by %s: %s", g_.params.name.c_str(),
        to_ring_ ? "the unicast ring" : "multicast", g_.path.reason.c_str());
  }
  g_.state = GroupState::kOpen;
  if (on_change_) on_change_(to_ring_ ? "ring" : "multicast", g_.path.reason);
}

void PathSwitch::on_switch_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  const bool from_parent = g_.from_parent(header.member);
  const std::string text(wire::Reader(body).rest_text().substr(0, 300));
  if (header.type == FrameType::kDeaf && g_.tree.is_top(g_.self)) {
    suspect(text, now);
  } else if (header.type == FrameType::kSwitch && from_parent && header.argument <= 1) {
    if (!g_.switching()) stop_starting(header.argument == 0, text, now);
  } else if (header.type == FrameType::kSwitchReady && g_.tree.is_child(header.member, g_.self) &&
             g_.switching() && waiting_ > 0) {
    line_ = std::max(line_, header.argument);
    if (--waiting_ == 0) answered(now);
  } else if (header.type == FrameType::kSwitchAt && from_parent && g_.switching()) {
    draw_line(header.sequence, now);
  } else {
    g_.counters.add(Counter::malformed);
  }
}

}  // namespace mcast
