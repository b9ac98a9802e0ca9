// RosterChange: which stations a group has, agreed by all its ranks in the middle of its life. The
// top is given those that aggregators have admitted; all ranks try to reach them; those that all
// have reached are in force from a line on (line.h, station_table.h), where operations go on
// meanwhile. Nothing about a station, lost at whatever moment, fails the group or keeps it waiting.
//
// Threads: the lane's.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collective/group_context.h"
#include "collective/line.h"
#include "wire/aggregation.h"

namespace mcast {

// What becomes of stations, by the uid of their stream endpoint. Run on the lane's thread, must not
// block. All but `settled` at the top only.
struct RosterEvents {
  // These are in force from now on; none: there are none, and nobody is being tried.
  std::function<void(const std::vector<uint64_t>& uids)> settled;
  // A rank cannot reach it, or has lost it; `why` names the rank. Once at least.
  std::function<void(uint64_t uid, const std::string& why)> lost;
  // No operation uses it any more and no rank speaks to it.
  std::function<void(uint64_t uid)> parted;
};

class Stations;

class RosterChange {
 public:
  RosterChange(GroupContext& context, Stations& stations);

  void set_listener(RosterEvents events) { events_ = std::move(events); }

  // At the top: all stations that are admitted now, in a fixed order of their aggregators. What was
  // proposed before and is not in force is given up.
  void propose(std::vector<wire::StationEntry> stations);

  // At the top: those in force fold nothing from a line on, or fold again. False: that cannot be
  // agreed on now.
  bool rest(bool resting);

  void drive(Nanos now);
  // At the top: all ranks have answered. draw() it when no other line is about to be drawn and no
  // rank has left, which would never answer.
  bool wants_line() const {
    return at_top() && stage_ == Stage::kTested && g_.state == GroupState::kOpen;
  }
  void draw(Nanos now);
  // A member has left: the stations stay as they are.
  void stop();
  Nanos deadline() const { return stage_ == Stage::kTesting && !tested_ ? until_ : kNever; }

  // Roster, RosterReach, RosterLine, RosterReady, RosterAt of a rank.
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  // Stations has noted the loss, here or by another rank's word. Once for each rank that learns of
  // it.
  void on_lost(uint32_t version, Member station, const std::string& why);

  // For people.
  std::string address_of(Member station) const;

  // For a station to answer, from the moment that a rank hears of it, at least; half of what one in
  // force may be silent, where that is longer.
  static constexpr Nanos kPatience = 500 * kMilli;

 private:
  // kIdle: nothing is being agreed. kTesting: this rank's stations or its children have not
  // answered. kTested: it waits for the line, at the top for the moment to draw it.
  enum class Stage : uint8_t { kIdle, kTesting, kTested };
  using Frame = wire::FrameHeader;

  void begin(wire::StationRoster roster, Nanos now);
  void meet(const wire::StationEntry& entry);
  void test(Nanos now);
  void subtree_tested();
  void in_force(Sequence from, Nanos now);
  void settle();
  void part_unused();

  void on_roster(const Frame& header, ConstBytes body, Nanos now);
  void on_reach(const Frame& header, ConstBytes body, Nanos now);
  void on_line(const Frame& header, ConstBytes body, Nanos now);
  // Of the version that is being agreed; else counted.
  bool is_current(ConstBytes body);

  void lose_unreached();
  std::vector<uint64_t> uids_in_force() const;
  Nanos patience() const { return std::max(kPatience, g_.params.aggregator_patience / 2); }
  bool changes_something(const std::vector<wire::StationEntry>& stations) const;
  void propose_to_all(std::vector<wire::StationEntry> stations, Nanos now);
  bool at_top() const { return g_.tree.is_top(g_.self); }

  GroupContext& g_;
  Stations& stations_;
  RosterEvents events_;
  Line line_;
  std::optional<std::vector<wire::StationEntry>> proposed_;
  bool rests_ = false;  // what is wanted of those in force

  Stage stage_ = Stage::kIdle;
  wire::StationRoster roster_;   // the latest that this rank has heard of
  std::vector<Member> members_;  // its stations' numbers
  std::vector<bool> connected_;  // by station: to this rank and to all that have answered
  std::vector<bool> children_;   // by child: it has answered
  bool tested_ = false;          // this rank has tried them all
  bool given_up_ = false;        // at the top: the latest roster, before all had answered
  Nanos until_ = kNever;
  struct Known {
    Member member;
    std::string address;  // for people
    bool met;             // and not parted from
  };
  std::map<uint64_t, Known> known_;  // by uid, all that rosters have named
  bool parting_ = false;             // somebody is met that may not be needed any more
};

}  // namespace mcast
