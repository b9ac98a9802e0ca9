// PartialReductions: reductions that complete without late ranks (setting `partial`). When an
// operation has waited for that long, member 0 asks all ranks about it. A rank that has not made
// the call takes part without its input from then on: a stand-in post, with its own memory, does
// the rank's work. The operation completes without the inputs of these ranks, with the same result
// everywhere. The late call gets the same result.
//
// Only reductions whose owners fold them, where every rank contributes individually and all ranks
// are in one rack. Other reductions wait as before.
//
// Threads: the lane's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "collective/aggregation_report.h"
#include "collective/group_context.h"
#include "collective/movements/reductions.h"
#include "wire/aggregation.h"

namespace mcast {

class PartialReductions {
 public:
  PartialReductions(GroupContext& context, Reductions& reductions)
      : g_(context), reductions_(reductions) {}

  // Called by every progress(): starts an inquiry if an operation has waited for too long.
  void drive(Nanos now);
  Nanos deadline() const { return waits_.asks; }

  using Frame = wire::FrameHeader;
  // From a rank to member 0, or from member 0. Returns the stand-in's post if one must be made now.
  std::optional<Post> on_excuse(const Frame& header, ConstBytes body, Nanos now);
  void on_excused(const Frame& header, Nanos now);
  void on_partial(const Frame& header, ConstBytes body, Nanos now);

  // Whether a stand-in has been posted for this call.
  bool holds(Sequence sequence) const { return stand_ins_.count(sequence) > 0; }
  void adopt(Post call);
  // Queues the callbacks of late calls whose operations have ended. Called by every progress() and
  // after deliveries.
  void collect();
  // Returns false while a late call may wait for its input: collect() checks it on every
  // progress().
  bool idle() const { return stand_ins_.empty(); }

  const AggregationReport::Partial& report() const { return report_; }

 private:
  struct StandIn {
    wire::Descriptor descriptor;
    Slice result;
    uint32_t contributors = 0;
    std::optional<Status> over;
    std::optional<Post> call;
  };

  bool served(const wire::Descriptor& descriptor) const;
  const Operation* oldest_incomplete();
  void ask(const Operation& op, Nanos now);
  std::optional<Post> begin(Sequence sequence, const wire::Descriptor& descriptor, Nanos now);
  std::optional<Post> answer(Sequence sequence, const wire::Descriptor& descriptor, Nanos now);
  Post stand_in(Sequence sequence, const wire::Descriptor& descriptor, Nanos now);
  void on_answer(Member from, bool excused, Nanos now);
  void apply(Sequence sequence, const wire::PartialResult& partial, Nanos now);
  void note(const Operation& op, const wire::PartialResult& partial, Nanos now);
  static void hand_over(StandIn& standing);

  GroupContext& g_;
  Reductions& reductions_;

  struct {
    Sequence complete = 0;           // all operations below are complete here
    std::optional<Sequence> oldest;  // the oldest operation that is not complete here
    Nanos asks = kNever;             // when that operation has waited for too long
  } waits_;
  // Member 0 only: the operation that ranks are asked about. One at a time, and each only once.
  struct {
    bool open = false;
    Sequence sequence = 0;
    uint32_t hash = 0;
    uint32_t missing = 0;         // replies that have not arrived
    std::vector<bool> answered;   // by rank
    wire::PartialResult partial;  // built from the replies so far
    Sequence next = 0;            // operations below have been asked about
  } inquiry_;
  std::map<Sequence, StandIn> stand_ins_;  // stand-ins that wait for their calls
  size_t memory_ = 0;                      // bytes held by stand_ins_
  AggregationReport::Partial report_;
  RateLimit warnings_{kSecond};
};

}  // namespace mcast
