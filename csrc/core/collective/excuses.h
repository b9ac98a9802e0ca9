// Excuses: reductions that do not wait for late ranks (setting `partial`). When an operation has
// waited for so long, member 0 asks all ranks about it. One that has not made the call takes part
// in it without its input from then on: a stand-in, with memory of its own, does the rank's work.
// The operation ends without the inputs of these ranks, with the same result everywhere; the late
// call, when it comes, gets it too.
//
// Reductions to owners only, where every rank contributes by itself and all are in one rack: others
// wait as ever.
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
#include "collective/reductions.h"
#include "collective/stations.h"
#include "wire/aggregation.h"

namespace mcast {

class Excuses {
 public:
  Excuses(GroupContext& context, Reductions& reductions, Stations& stations)
      : g_(context), reductions_(reductions), stations_(stations) {}

  // With every turn: has an operation waited for too long?
  void drive(Nanos now);
  Nanos deadline() const { return waits_.asks; }

  using Frame = wire::FrameHeader;
  // From a rank to member 0, or from member 0. A post: of the stand-in, to be made now.
  std::optional<Post> on_excuse(const Frame& header, ConstBytes body, Nanos now);
  void on_excused(const Frame& header, Nanos now);
  void on_partial(const Frame& header, ConstBytes body, Nanos now);

  // A call that a stand-in has taken the place of.
  bool holds(Sequence sequence) const { return stand_ins_.count(sequence) > 0; }
  void adopt(Post call);
  // What has ended of these is queued for its callback. With every turn, and after deliveries.
  void collect();
  // False while a late call may wait for its input: collect() looks at it in every turn.
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
  Stations& stations_;

  struct {
    Sequence complete = 0;           // here: all operations below
    std::optional<Sequence> oldest;  // that is not
    Nanos asks = kNever;             // when that has waited for too long
  } waits_;
  // At member 0: the operation that ranks are asked about; one at a time, each once.
  struct {
    bool open = false;
    Sequence sequence = 0;
    uint32_t hash = 0;
    uint32_t missing = 0;         // answers
    std::vector<bool> answered;   // by rank
    wire::PartialResult partial;  // as far as ranks have answered
    Sequence next = 0;            // operations below have been asked about
  } inquiry_;
  std::map<Sequence, StandIn> stand_ins_;  // that wait for their calls
  size_t memory_ = 0;                      // of these
  AggregationReport::Partial report_;
  RateLimit warnings_{kSecond};
};

}  // namespace mcast
