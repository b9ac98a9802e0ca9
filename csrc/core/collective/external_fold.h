// ExternalFold: a product that folds parts of a group's reductions outside of its ranks
// (aggregation/member/stations.h), as the group sees it. The group passes it frames, losses and
// time, and asks it for a share of each reduction when that is posted. Those who fold are stations:
// peers with member numbers from the group's size on. Calls are per operation, frame or turn;
// reductions read a FoldShare per segment.
//
// Threads: the lane's.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "collective/aggregation_report.h"
#include "collective/fold_share.h"
#include "collective/operation.h"
#include "wire/frame.h"

namespace mcast {

class GroupContext;
class Reductions;

class ExternalFold {
 public:
  using Frame = wire::FrameHeader;
  virtual ~ExternalFold() = default;

  // The part of an operation that stations fold. Called at the post. Null: nothing.
  virtual std::unique_ptr<FoldShare> share_of(const Operation& op) = 0;
  // The operation's run has been made.
  virtual void start(Operation& op) = 0;
  // The operation completes without some ranks (ReduceRun::partial).
  virtual void tell_partial(const Operation& op) = 0;
  // Called for every operation that has ended well, before its memory is returned.
  virtual void on_finished(const Operation& op, Nanos now) = 0;
  // All operations below are complete everywhere.
  virtual void released(Sequence base) = 0;

  // Whether frames may be sent to the station.
  virtual bool reachable(Member station) const = 0;
  virtual void on_frame(const Frame& header, ConstBytes body, Nanos now) = 0;
  virtual void on_down(Member station, const Status& why) = 0;
  // Roster and AggGone frames, from a rank.
  virtual void on_rank_frame(const Frame& header, ConstBytes body, Nanos now) = 0;

  // The ranks' agreement on the stations. Returns true once it needs a cut-over: begin_cutover()
  // begins it, when no other is about to begin and no rank that is needed for it has left.
  virtual bool agree(Nanos now) = 0;
  virtual void begin_cutover(Nanos now) = 0;
  virtual Nanos agreement_deadline() const = 0;
  // A rank has left: the stations remain as they are.
  virtual void stop() = 0;

  // Called by every progress(). `drained`: the transport's receive side was seen empty.
  virtual void drive(Nanos now, bool drained) = 0;
  virtual Nanos deadline() const = 0;

  // Names the ranks that stations wait for in operation `sequence` or an earlier one, for errors;
  // empty if there are none.
  virtual std::string waiting_text(Sequence sequence, Nanos now) const = 0;
  // Fills in `plans` and `waiting`.
  virtual void report(AggregationReport& report, Nanos now) const = 0;
};

// Makes the ExternalFold of a group; both arguments outlive it.
using ExternalFoldMaker = std::unique_ptr<ExternalFold> (*)(GroupContext&, Reductions&);

}  // namespace mcast
