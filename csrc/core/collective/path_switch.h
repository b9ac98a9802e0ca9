// PathSwitch: chooses multicast or the ring for a group's streams. Decided when the group is
// created (path_probe.h), and changed later in either direction if needed.
//
// Threads: the lane's.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "collective/cutover.h"
#include "collective/flood.h"
#include "collective/group_context.h"
#include "collective/membership.h"
#include "collective/path_probe.h"
#include "collective/rate_test.h"
#include "protocol/probe.h"
#include "protocol/reachability_monitor.h"

namespace mcast {

class PathSwitch {
 public:
  PathSwitch(GroupContext& context, Membership& membership)
      : g_(context),
        creation_(context, membership),
        reachability_(context.size),
        rates_(context),
        flood_(context),
        cutover_(context, {wire::FrameType::kSwitch, wire::FrameType::kSwitchReady,
                           wire::FrameType::kSwitchAt}) {}

  // Runs when the path changes.
  void set_listener(std::function<void(const std::string& path, const std::string& why)> listener) {
    on_change_ = std::move(listener);
  }

  // Creation of the group.
  PathProbe& creation() { return creation_; }
  const PathProbe& creation() const { return creation_; }
  // Whether a probe is under way that tests if multicast reaches all members.
  bool probing() const { return creation_.under_way() || checking(); }

  // A datagram of `from` has arrived by multicast.
  void on_heard(Member from, Sequence sequence) { reachability_.on_heard(from, sequence); }
  // The multicast address is flooded, as detected by this member or another group of its lane.
  void on_flood(const std::string& why, Nanos now);
  // The operation's blocks are complete: checks whether any arrived without its multicast being
  // heard.
  void judge(const Operation& op, Nanos now);

  // A member has left: cancels checks and pending changes, and begins no others.
  void stop();

  // path_check.cpp: checks again whether multicast reaches all members
  bool checking() const { return check_.has_value(); }
  // Whether drive() has work that does not depend on operations.
  bool busy() const { return checking() || rates_.under_way(); }
  void drive(Nanos now);
  Nanos deadline() const {
    return std::min({check_ ? check_->deadline() : kNever, rates_.deadline(), flood_.deadline()});
  }
  // Probes and their frames. Round 0 is the creation's.
  void on_probe(Member from, uint32_t round, bool full) {
    if (round == 0) return creation_.on_probe(from, full);
    if (check_ && round == round_) check_->on_probe(from, full);
  }

  using Frame = wire::FrameHeader;
  void on_probe_frame(const Frame& header, ConstBytes body, Nanos now);

  // Compares the rates of both paths.
  RateTest& rates() { return rates_; }
  const RateTest& rates() const { return rates_; }

  // path_switch.cpp: a change that is agreed or pending
  void on_switch_frame(const Frame& header, ConstBytes body, Nanos now);

 private:
  // path_switch.cpp
  void tell_top(uint32_t what, const std::string& why, Nanos now);
  void doubt(uint32_t what, const std::string& why, Nanos now);
  void begin(bool to_ring, const std::string& why, Nanos now);
  void stop_starting(bool to_ring, const std::string& why, Nanos now);
  void draw_for_rates(Nanos now);
  void change(Sequence first, Nanos now);
  // path_check.cpp
  void watch_flood(Nanos now);
  void check_later(Nanos now);
  void start_check(Nanos now, const std::string& why);
  void begin_round(uint32_t round, Nanos now);
  void drive_check(Nanos now);
  void end_round(bool heard, const std::string& why, Nanos now);
  void act_on_rates(Nanos now);

  GroupContext& g_;
  PathProbe creation_;
  ReachabilityMonitor reachability_;
  RateTest rates_;
  Flood flood_;
  std::optional<ReachProbe> check_;  // a round of the path check
  uint32_t round_ = 0;
  Nanos next_check_ = kNever, check_wait_ = 0;  // at the top, while on the ring
  std::string suspicion_;
  // Top member only: reports that a member does not receive multicast are ignored until then.
  Nanos doubts_from_ = 0;
  // A change that is being agreed: cut-over, direction, reason.
  Cutover cutover_;
  bool to_ring_ = false;
  std::string reason_;
  std::function<void(const std::string& path, const std::string& why)> on_change_;
};

}  // namespace mcast
