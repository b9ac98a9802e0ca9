// CompletionReports: reports on the control tree which operations are complete at which members.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "protocol/completion.h"

namespace mcast {

class CompletionReports {
 public:
  explicit CompletionReports(GroupContext& context);

  // An operation is posted here. Describes the call to a child that has reported a different one.
  void on_post(Sequence sequence, uint32_t hash);
  // Every operation below `end` is complete here. `urgent`: a caller waits for the release.
  void complete_own(Sequence end, bool urgent, Nanos now);
  Sequence own_complete() const { return tracker_.own_complete(); }
  // All operations below are complete everywhere. GroupCore releases them at the end of the event.
  Sequence released() const { return tracker_.released(); }
  // All operations below are complete in the whole subtree of this child.
  Sequence child_complete(uint32_t child) const { return tracker_.child_complete(child); }

  void report(Nanos now);
  Nanos deadline() const { return tracker_.deadline(); }

  using Frame = wire::FrameHeader;
  void on_complete(const Frame& header, ConstBytes body, Nanos now);
  void on_released(Sequence end);
  void on_released_frame(const Frame& header);

 private:
  GroupContext& g_;
  CompletionTracker tracker_;
};

}  // namespace mcast
