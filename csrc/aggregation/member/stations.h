// Stations: reductions whose segments stations of aggregators fold. Chooses the stations, informs
// them of posts, handles their grants and results, and handles their loss. No action or failure of
// a station fails the group: its segments go back to their owners.
//
// Threads: the lane's.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "aggregation/member/roster_change.h"
#include "aggregation/member/station_trial.h"
#include "aggregation/member/straggler_reports.h"
#include "aggregation/plan/station_deal.h"
#include "aggregation/plan/station_table.h"
#include "collective/external_fold.h"
#include "collective/group_context.h"
#include "collective/movements/reductions.h"
#include "protocol/liveness.h"

namespace mcast {

class Stations final : public ExternalFold {
 public:
  // Most operations that may be open at a station, which has room for as many
  // (aggregation::Job::kAhead).
  static constexpr size_t kMostOpen = 64;

  Stations(GroupContext& context, Reductions& reductions)
      : g_(context),
        reductions_(reductions),
        roster_(context, *this),
        watch_({}, context.params.aggregator_patience) {}

  // Makes them for a group (GroupParams::fold).
  static std::unique_ptr<ExternalFold> make(GroupContext& context, Reductions& reductions);
  // The stations of a group that was made with make(); null for another group.
  static Stations* of(ExternalFold* fold) { return static_cast<Stations*>(fold); }

  // By the set in force.
  std::unique_ptr<FoldShare> share_of(const Operation& op) override;
  // Opens the operation at its stations, in order. Owners take over the segments of stations that
  // are out.
  void start(Operation& op) override;
  void tell_partial(const Operation& op) override;
  void on_finished(const Operation& op, Nanos now) override;
  void released(Sequence base) override { table_.released(base); }
  bool reachable(Member station) const override;
  void on_frame(const Frame& header, ConstBytes body, Nanos now) override;
  void on_down(Member station, const Status& why) override;
  void on_rank_frame(const Frame& header, ConstBytes body, Nanos now) override;
  bool agree(Nanos now) override;
  void begin_cutover(Nanos now) override { roster_.begin_cutover(now); }
  Nanos agreement_deadline() const override { return roster_.deadline(); }
  void stop() override { roster_.stop(); }
  void drive(Nanos now, bool drained) override;
  Nanos deadline() const override { return watch_.deadline(); }
  std::string waiting_text(Sequence sequence, Nanos now) const override;
  void report(AggregationReport& report, Nanos now) const override;

  StationTable& table() { return table_; }
  const StationTable& table() const { return table_; }
  // Installs stations without a roster. All members must install the same before the set's first
  // operation. at[i]: address of set.stations[i].
  void use(const StationSet& set, std::span<const StreamAddress> at);
  // A station of a set, which need not be in force yet, is lost. Informs the other ranks, except
  // `told_by`.
  void lose(uint32_t version, Member station, const std::string& why, Member told_by = kNoMember);
  // The agreement on the set of stations.
  RosterChange& roster() { return roster_; }
  const RosterChange& roster() const { return roster_; }

  // A set is in force. `others`: its stations differ from those of the set before.
  void on_roster(bool others, Nanos now);

 private:
  // The planner's decision for the latest large all_reduce or reduce_scatter.
  struct Planned {
    Sequence sequence = 0;
    uint64_t bytes = 0;  // of one rank's whole input
    Placement placement;
    std::vector<Station> stations;
  };
  // Error in a frame of a station; null if there is none.
  using Fault = const char*;
  Fault on_station_frame(const Frame& header, ConstBytes body, Nanos now);
  Fault on_wait(const Frame& header, ConstBytes body, Nanos now);
  Fault on_grant(Operation& op, uint16_t station, ConstBytes body);
  Fault on_result(Operation& op, uint16_t station, ConstBytes body);
  Fault on_decline(Operation& op, uint16_t station, ConstBytes body);
  // A rank reports that a station is lost.
  void on_gone(const Frame& header, ConstBytes body);

  // Whether times with and without stations are compared.
  bool compares() const {
    return g_.tree.is_top(g_.self) && g_.params.agreed.aggregate == AggregateMode::kCareful;
  }
  // Bytes of one rank's whole input.
  uint64_t input_bytes(const wire::Descriptor& d) const;
  // The set that an operation is dealt by.
  const StationSet& set_of(const Operation& op) const { return *table_.of(op.post.sequence); }
  // Opens all operations that can be opened by now.
  void open_ready();
  bool openable(const Operation& op) const;
  void open(Operation& op);
  // Station `j` folds nothing more of the operation. In a tree no station does, and all are
  // informed.
  void drop(Operation& op, uint16_t j, const std::string& why);
  void tell_broken(const Operation& op);
  void tell(const Operation& op, wire::FrameType type, ConstBytes body);
  // This rank has found the station lost: marks it out in all sets, and informs all ranks.
  void give_up(Member station, const std::string& why);
  void watch(Nanos now);

  GroupContext& g_;
  Reductions& reductions_;
  StationTable table_;
  RosterChange roster_;
  std::deque<Sequence> dealt_;     // operations in flight that are partly dealt to stations
  std::deque<Sequence> unopened_;  // those of dealt_ that are not opened yet
  Liveness watch_;                 // of stations with a part in operations in flight
  std::map<wire::Kind, Planned> planned_;
  // Operations in flight that would be dealt if stations did not rest.
  std::deque<Sequence> rested_;
  StationTrial trial_;
  StragglerReports stragglers_;  // top member only
};

}  // namespace mcast
