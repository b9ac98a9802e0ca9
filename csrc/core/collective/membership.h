// Membership: members that are alive, have left, or are gone, and the effects on the group.
//
// Threads: the lane's.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "collective/group_context.h"
#include "protocol/liveness.h"

namespace mcast {

// Error of a group that fails because of a silent member.
Status silence_of(Member member, Nanos silence, Nanos limit);

class Membership {
 public:
  explicit Membership(GroupContext& context);

  // Called by every progress().
  void on_turn(bool active, Nanos now);
  // Sets whether work is in flight that a dead member would delay: silence counts only then.
  void set_active(bool active, Nanos now) { liveness_.set_active(active, now); }
  // Pings members that are due. Fails the group if a member is silent for too long, or if a member
  // that is gone is needed. `drained`: the transport's receive side was seen empty.
  void drive(Nanos now, bool drained);
  Nanos deadline() const;

  // During group creation: pings watched members. Before all_met() no silence counts.
  void greet();
  void all_met(Nanos now) { liveness_.all_met(now); }
  bool met(Member m) const { return liveness_.met(m); }
  const std::vector<Member>& watched() const { return liveness_.watched(); }

  void heard(Member m, Nanos now) { liveness_.heard(m, now); }
  void on_peer_down(Member peer, const Status& why, bool graceful, Nanos now);
  using Frame = wire::FrameHeader;
  void on_ping(const Frame& header, ConstBytes body);
  // False: the frame is not valid.
  bool on_leave(const Frame& header);

  // This member closes: all members must confirm the operations it has posted.
  void on_close();
  // Informs the others that this member posts nothing more, and that all its operations are
  // complete everywhere.
  void leave();
  bool leaving() const { return left_[g_.self] != UINT32_MAX; }
  // A member that will not post this operation, and why. Nullopt if none is known.
  std::optional<std::pair<Member, Status>> misses(Sequence sequence) const;
  // Returns false and fails the group if a member will not post this operation.
  bool all_stay_for(Sequence sequence);

 private:
  void miss_silent(Nanos now);
  void miss_left();

  GroupContext& g_;
  Liveness liveness_;
  std::vector<Sequence> left_;  // by member: first op it will not post; UINT32_MAX while it stays
  // A member closed in order while we still wait: its last news may still be travelling through
  // others.
  Member departed_ = kNoMember;
  Nanos departed_until_ = kNever;
  // A member was lost when only the confirmation of finished operations was open. It will not
  // arrive.
  Member lost_ = kNoMember;
  Nanos lost_until_ = kNever;
};

}  // namespace mcast
