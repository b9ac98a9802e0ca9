// One iteration: commands in order, the lane's poll, then groups that are closing. A group closes
// when it is quiet. At its deadline, operations in flight or unconfirmed fail: here with the
// operation that was waited for, elsewhere with the rank that left.
#include "runtime/lane_loop.h"

#include <algorithm>

#include "collective/closing.h"

namespace mcast {

bool LaneLoop::turn(std::vector<LaneDriver::Command>& commands, Nanos now) {
  const bool ran = !commands.empty();
  run(commands, now);
  const bool busy = lane_.poll(now);
  serve_closing(now);
  return busy || ran;
}

void LaneLoop::run(std::vector<LaneDriver::Command>& commands, Nanos now) {
  for (LaneDriver::Command& command : commands) command(lane_, now);
  commands.clear();  // captured memory is released here, not in the next iteration
}

Nanos LaneLoop::deadline(Nanos now) const {
  Nanos next = lane_.deadline(now);
  for (const Closing& c : closing_) next = std::min(next, c.deadline);
  return next;
}

void LaneLoop::serve_closing(Nanos now) {
  for (size_t i = 0; i < closing_.size();) {
    const Closing c = closing_[i];
    LaneGroup* group = lane_.find_group(c.tag);
    if (group != nullptr) group->core().close(now);
    const bool over =
        group == nullptr || (c.force ? group->core().confirmed_so_far() : group->core().quiet());
    if (!over && now < c.deadline) {
      i++;
      continue;
    }
    closing_.erase(closing_.begin() + static_cast<std::ptrdiff_t>(i));
    Status outcome;
    if (group != nullptr) {
      GroupCore& core = group->core();
      // A specific failure is already pending; report it instead of 'member left'.
      core.fail_early(now);
      if (const std::string oldest = core.unfinished_text(now); !oldest.empty()) {
        const LeftInFlight left = left_in_flight(core.params().self, core.waiting(), c.force);
        core.fail(left.for_others, core.params().self, now);
        outcome = left.here.with_context(oldest);
      }
      group->core().leave(now);
      lane_.remove_group(c.tag);
    }
    c.done(outcome);
  }
}

void LaneLoop::end(std::vector<LaneDriver::Command>& commands, Nanos now) {
  run(commands, now);
  while (lane_.deliver()) {
  }
  for (const Closing& c : closing_) c.done(Status(Code::kClosed, "the engine is shut down"));
  closing_.clear();
}

}  // namespace mcast
