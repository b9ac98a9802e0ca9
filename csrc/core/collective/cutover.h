// Cutover: a cut-over. All members of a group agree on the operation from which a change applies:
// another path (path_switch.h), other stations (roster_change.h). They stop starting operations,
// the top collects how far any member has started, and sets the cut-over behind that. Only one
// cut-over is pending at a time; the code at the top that begins one ensures it
// (GroupContext::switching()).
//
// Threads: the lane's.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "collective/group_context.h"

namespace mcast {

class Cutover {
 public:
  // Frame types of one kind of cut-over: Stop goes down the tree, Ready up, At down.
  struct Frames {
    wire::FrameType stop, ready, at;
  };
  Cutover(GroupContext& context, const Frames& frames) : g_(context), frames_(frames) {}

  // Stops starting operations, here and below, until the cut-over is set. `argument` and `body` are
  // those of Stop; `name` is the body of Ready and At. Must not be called while a cut-over is
  // pending. Returns the cut-over if this member can set it without others.
  std::optional<Sequence> stop(uint32_t argument, ConstBytes body, ConstBytes name);
  // The pending cut-over will never be set: operations start again.
  void give_up();
  bool is_pending() const { return pending_ && g_.switching(); }

  // Both return the cut-over once this member knows it: operations start again, and those from it
  // on are subject to the change. Nullopt if the frame is unexpected, which is counted, or does not
  // settle it yet.
  std::optional<Sequence> on_ready(const wire::FrameHeader& header);
  std::optional<Sequence> on_at(const wire::FrameHeader& header);

 private:
  std::optional<Sequence> answered();
  Sequence settle(Sequence first);

  GroupContext& g_;
  const Frames frames_;
  bool pending_ = false;
  uint32_t waiting_ = 0;  // children that have not replied
  Sequence most_ = 0;     // most operations that any member of the subtree has started
  std::vector<std::byte> name_;
};

}  // namespace mcast
