// Stop goes down the tree. Every member stops starting operations and, when all its children have
// replied, reports the most operations that any member of its subtree has started. The top takes
// the largest number, S, and announces it: operations below S end as they began, and the change
// applies from S on. No member starts an operation between its reply and the announcement, so all
// members use the same cut-over, although some had posted further ahead than others.
#include "collective/cutover.h"

#include <algorithm>

namespace mcast {

std::optional<Sequence> Cutover::stop(uint32_t argument, ConstBytes body, ConstBytes name) {
  g_.state = GroupState::kSwitching;
  pending_ = true;
  waiting_ = g_.tree.children(g_.self);
  most_ = g_.ops.next();
  name_.assign(name.begin(), name.end());
  g_.send_to_children(frames_.stop, 0, argument, body);
  if (waiting_ > 0) return std::nullopt;
  return answered();
}

void Cutover::give_up() {
  if (!is_pending()) return;
  pending_ = false;
  g_.state = GroupState::kOpen;
}

std::optional<Sequence> Cutover::answered() {
  if (g_.tree.is_top(g_.self)) return settle(most_);
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, frames_.ready, 0, most_, name_);
  return std::nullopt;
}

std::optional<Sequence> Cutover::on_ready(const wire::FrameHeader& header) {
  if (!g_.tree.is_child(header.member, g_.self) || !is_pending() || waiting_ == 0) {
    g_.counters.add(Counter::malformed);
    return std::nullopt;
  }
  most_ = std::max(most_, header.argument);
  if (--waiting_ > 0) return std::nullopt;
  return answered();
}

std::optional<Sequence> Cutover::on_at(const wire::FrameHeader& header) {
  if (!g_.from_parent(header.member) || !is_pending()) {
    g_.counters.add(Counter::malformed);
    return std::nullopt;
  }
  return settle(header.sequence);
}

Sequence Cutover::settle(Sequence first) {
  g_.send_to_children(frames_.at, first, 0, name_);
  pending_ = false;
  g_.state = GroupState::kOpen;
  return first;
}

}  // namespace mcast
