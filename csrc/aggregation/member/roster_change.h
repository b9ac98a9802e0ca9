// RosterChange: all ranks of a group agree on its stations during its life. The top receives the
// stations that aggregators have admitted, and all ranks try to reach them. Stations that all ranks
// have reached are in force from a cut-over on (cutover.h, station_table.h); operations continue
// meanwhile. A station that is lost at any moment neither fails the group nor delays it.
//
// Threads: the lane's.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collective/cutover.h"
#include "collective/group_context.h"
#include "wire/aggregation.h"

namespace mcast {

// Events of stations, named by the uid of their stream endpoint. Run on the lane's thread; must not
// block. All but `settled` run at the top only.
struct RosterEvents {
  // These stations are in force from now on (perhaps none), and no other is being tried.
  std::function<void(const std::vector<uint64_t>& uids)> settled;
  // A rank cannot reach the station or has lost it; `why` names the rank. Runs at least once.
  std::function<void(uint64_t uid, const std::string& why)> lost;
  // No operation uses the station any more, and no rank is connected to it.
  std::function<void(uint64_t uid)> parted;
};

class Stations;
class StationTable;

class RosterChange {
 public:
  RosterChange(GroupContext& context, Stations& stations);

  void set_listener(RosterEvents events) { events_ = std::move(events); }

  // At the top: proposes all stations that are admitted now, in a fixed order of their aggregators.
  // An earlier proposal that is not in force is dropped.
  void propose(std::vector<wire::StationEntry> stations);

  // At the top: the stations in force stop folding from a cut-over on, or start again. Returns
  // false if that cannot be agreed on now.
  bool rest(bool resting);

  void drive(Nanos now);
  // At the top: all ranks have replied. Call begin_cutover() when no other cut-over is about to
  // begin and no rank has left: that rank would never reply.
  bool wants_line() const {
    return at_top() && stage_ == Stage::kTested && g_.state == GroupState::kOpen;
  }
  void begin_cutover(Nanos now);
  // A member has left: the stations remain as they are.
  void stop();
  Nanos deadline() const { return stage_ == Stage::kTesting && !tested_ ? until_ : kNever; }

  // Roster, RosterReach, RosterStop, RosterReady, RosterAt of a rank.
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  // Stations has recorded the loss, noticed here or reported by another rank. Called once for each
  // rank that learns of it.
  void on_lost(uint32_t version, Member station, const std::string& why);

  // For display.
  std::string address_of(Member station) const;

  // Least time for a station to reply, from the moment a rank learns of it. Half the silence
  // allowed to a station in force is used if that is longer.
  static constexpr Nanos kPatience = 500 * kMilli;

 private:
  // kIdle: nothing is being agreed. kTesting: this rank's stations or its children have not
  // replied. kTested: waits for the cut-over; at the top, for the moment to begin one.
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
  void on_stop(const Frame& header, ConstBytes body, Nanos now);
  // Whether the frame is about the version that is being agreed. Counts the frame otherwise.
  bool is_current(ConstBytes body);

  void lose_unreached();
  std::vector<uint64_t> uids_in_force() const;
  Nanos patience() const { return std::max(kPatience, g_.params.aggregator_patience / 2); }
  bool changes_something(const std::vector<wire::StationEntry>& stations) const;
  void propose_to_all(std::vector<wire::StationEntry> stations, Nanos now);
  bool at_top() const { return g_.tree.is_top(g_.self); }

  GroupContext& g_;
  Stations& stations_;
  StationTable& table_;
  RosterEvents events_;
  Cutover cutover_;
  std::optional<std::vector<wire::StationEntry>> proposed_;
  bool rests_ = false;  // wanted state of the stations in force

  Stage stage_ = Stage::kIdle;
  wire::StationRoster roster_;   // the latest that this rank has received
  std::vector<Member> members_;  // its stations' numbers
  std::vector<bool> connected_;  // by station: reached by this rank and all that have replied
  std::vector<bool> children_;   // by child: it has replied
  bool tested_ = false;          // this rank has tried them all
  bool given_up_ = false;        // at the top: the latest roster was dropped before all had replied
  Nanos until_ = kNever;
  struct Known {
    Member member;
    std::string address;  // for display
    bool met;             // and not parted since
  };
  std::map<uint64_t, Known> known_;  // by uid: all stations of all rosters
  bool parting_ = false;             // a met station may no longer be needed
};

}  // namespace mcast
