// Stations: reductions whose segments stations of aggregators fold. Which of them, telling stations
// what has been posted, their grants and results, and what becomes of it all when one is lost.
// Nothing that a station does or fails to do fails the group: its segments go back to their owners.
//
// Threads: the lane's.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "collective/group_context.h"
#include "collective/reductions.h"
#include "collective/roster_change.h"
#include "collective/straggler_reports.h"
#include "protocol/liveness.h"
#include "protocol/station_trial.h"

namespace mcast {

class Stations {
 public:
  // Operations that may be open at a station: its room (aggregation::Job::kAhead).
  static constexpr size_t kMostOpen = 64;

  Stations(GroupContext& context, Reductions& reductions)
      : g_(context),
        reductions_(reductions),
        roster_(context, *this),
        watch_({}, context.params.aggregator_patience) {}

  // What stations fold of an operation that is being posted, by the set in force; null: nothing.
  std::unique_ptr<StationShare> share_of(const Operation& op);
  // Its run has been made: it is opened at its stations, in its turn, and what those that are out
  // were to fold is its owners'.
  void start(Operation& op);
  // Opens what can be opened by now.
  void open_ready();

  // It ends without some ranks: those that fold for it are told.
  void tell_partial(const Operation& op);

  using Frame = wire::FrameHeader;
  // From a station.
  void on_frame(const Frame& header, ConstBytes body, Nanos now);
  // From a rank: a station is lost.
  void on_gone(const Frame& header, ConstBytes body);
  void on_down(Member station, const Status& why);
  // A station of a set, which need not be in force yet, is lost; the others are told, but
  // `told_by`.
  void lose(uint32_t version, Member station, const std::string& why, Member told_by = kNoMember);
  // Which stations there are, and from which operation on.
  RosterChange& roster() { return roster_; }
  const RosterChange& roster() const { return roster_; }

  // A set is in force; `others`: its stations are not those of the one before.
  void on_roster(bool others, Nanos now);
  // Of every operation that has ended well, before its memory is given back.
  void on_finished(const Operation& op, Nanos now);

  // With every turn; `drained`: the transport's receive side was seen empty.
  void drive(Nanos now, bool drained);
  Nanos deadline() const { return watch_.deadline(); }

  // What the planner has made of the last large all_reduce and reduce_scatter.
  struct Planned {
    Sequence sequence = 0;
    uint64_t bytes = 0;  // of a rank's whole input
    Placement placement;
    std::vector<Station> stations;
  };
  // At the top: what such operations have taken, with stations and without.
  StationTrial::Times times(wire::Kind kind, uint64_t bytes) const {
    return trial_.times({kind == wire::Kind::kReduceScatter, bytes});
  }
  const std::map<wire::Kind, Planned>& planned() const { return planned_; }
  // At the top: whom stations wait for.
  const StragglerReports& stragglers() const { return stragglers_; }

 private:
  // What is wrong with a frame of a station; null: nothing.
  using Fault = const char*;
  Fault on_station_frame(const Frame& header, ConstBytes body, Nanos now);
  Fault on_wait(const Frame& header, ConstBytes body, Nanos now);
  Fault on_grant(Operation& op, uint16_t station, ConstBytes body);
  Fault on_result(Operation& op, uint16_t station, ConstBytes body);
  Fault on_decline(Operation& op, uint16_t station, ConstBytes body);

  // Their times are compared.
  bool compares() const {
    return g_.tree.is_top(g_.self) && g_.params.agreed.aggregate == AggregateMode::kCareful;
  }
  // Of a rank, whole.
  uint64_t input_bytes(const wire::Descriptor& d) const;
  bool openable(const Operation& op) const;
  void open(Operation& op);
  // Station `j` folds nothing of the operation any more; in a tree none does, and they are told.
  void drop(Operation& op, uint16_t j, const std::string& why);
  void tell_broken(const Operation& op);
  void tell(const Operation& op, wire::FrameType type, ConstBytes body);
  // We have found it lost: it is out of all sets, and everybody is told.
  void give_up(Member station, const std::string& why);
  void watch(Nanos now);

  GroupContext& g_;
  Reductions& reductions_;
  RosterChange roster_;
  std::deque<Sequence> dealt_;     // operations in flight that stations have a part in
  std::deque<Sequence> unopened_;  // of these
  Liveness watch_;                 // of stations that have a part in what is in flight
  std::map<wire::Kind, Planned> planned_;
  std::deque<Sequence> rested_;  // operations in flight that they would have a part in
  StationTrial trial_;
  StragglerReports stragglers_;
};

}  // namespace mcast
