// PathProbe: creation of a group, from the first ping to the decision whether it uses multicast.
//
// Threads: the lane's.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "collective/group_context.h"
#include "collective/membership.h"
#include "protocol/probe.h"

namespace mcast {

// Parameters of a reach probe of this group.
ReachProbe::Params probe_params(const GroupContext& g);
// Multicasts the probes that are due. `round`: of the path check; 0: of the group's creation.
void send_probes(GroupContext& g, const ReachProbe& probe, Sequence round);

class PathProbe {
 public:
  PathProbe(GroupContext& context, Membership& membership) : g_(context), membership_(membership) {}

  // `ready` runs once, with the path or the reason of failure.
  void start(Nanos now, std::function<void(const Status&)> ready);
  bool under_way() const { return probe_.has_value(); }
  void drive(Nanos now);
  Nanos deadline() const { return probe_ ? probe_->deadline() : kNever; }
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  void on_probe(Member from, bool full) {
    if (probe_) probe_->on_probe(from, full);
  }
  // Only while the probe is under way. The decision is forwarded to the children.
  void decide(bool multicast, const std::string& why, Nanos now);
  // The group has failed.
  void give_up(const Status& why);
  // Names the members that delay the decision, as far as known here.
  std::string text() const;

 private:
  void drive_joining(Nanos now);
  void all_joined(ReachProbe::Reach reach, const std::string& why, Nanos now);
  void pass_start(uint32_t argument, const std::string& text);
  ReachProbe::Here child_met() const;
  std::string absent_parent() const;

  GroupContext& g_;
  Membership& membership_;
  std::optional<ReachProbe> probe_;
  std::string missing_;  // ranks that have not joined, as reported by the top
  std::function<void(const Status&)> ready_;
};

}  // namespace mcast
