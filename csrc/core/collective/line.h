// Line: all members agree on the operation from which something holds, in the middle of a group's
// life: another path (path_switch.h), other stations (roster_change.h). They stop starting
// operations, the top hears how far anybody has started, and draws the line behind that. One line
// is drawn at a time; who draws at the top sees to that (GroupContext::switching()).
//
// Threads: the lane's.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "collective/group_context.h"

namespace mcast {

class Line {
 public:
  // The frames of one kind of line: Stop goes down, Ready up, At down.
  struct Frames {
    wire::FrameType stop, ready, at;
  };
  Line(GroupContext& context, const Frames& frames) : g_(context), frames_(frames) {}

  // Operations start no more, here and below, until the line is drawn. `argument` and `body`: of
  // Stop; `name`: the body of Ready and At. Not while one is being drawn. The line, if this member
  // alone could draw it.
  std::optional<Sequence> stop(uint32_t argument, ConstBytes body, ConstBytes name);
  // None will be drawn any more: operations start again.
  void give_up();
  bool being_drawn() const { return drawing_ && g_.switching(); }

  // Each gives the line, once this member knows it: operations start again, and those from it on
  // are the new ones. Nothing where the frame is out of place, which is counted, or says less.
  std::optional<Sequence> on_ready(const wire::FrameHeader& header);
  std::optional<Sequence> on_at(const wire::FrameHeader& header);

 private:
  std::optional<Sequence> answered();
  Sequence draw(Sequence first);

  GroupContext& g_;
  const Frames frames_;
  bool drawing_ = false;
  uint32_t waiting_ = 0;  // children that have not answered
  Sequence most_ = 0;     // operations that any member of the subtree has started
  std::vector<std::byte> name_;
};

}  // namespace mcast
