// Membership: who is alive, who has left, who is gone, and what that means for the group.
//
// Threads: the lane's.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "collective/group_context.h"
#include "protocol/liveness.h"

namespace mcast {

// Why a group fails whose member says nothing any more.
Status silence_of(Member member, Nanos silence, Nanos limit);

class Membership {
 public:
  explicit Membership(GroupContext& context);

  // With every turn.
  void on_turn(bool active, Nanos now);
  // Something is under way that a dead member would hold up: silence counts only then.
  void set_active(bool active, Nanos now) { liveness_.set_active(active, now); }
  // Pings who is due and fails the group where one is silent for too long; `drained`: the
  // transport's receive side was seen empty. Fails it, too, where one that is gone is missed.
  void drive(Nanos now, bool drained);
  Nanos deadline() const;

  // A group that is being made: pings those that are watched; until all_met() nobody is missed.
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

  // This member closes: what it has posted has to be confirmed by all.
  void on_close();
  // Says that this member posts nothing more, and that all that it has posted is complete
  // everywhere.
  void leave();
  bool leaving() const { return left_[g_.self] != UINT32_MAX; }
  // Who will not post this operation, and why; nobody that is known.
  std::optional<std::pair<Member, Status>> misses(Sequence sequence) const;
  // False: somebody will not post this operation, the group fails.
  bool all_stay_for(Sequence sequence);

 private:
  void miss_silent(Nanos now);
  void miss_left();

  GroupContext& g_;
  Liveness liveness_;
  std::vector<Sequence> left_;  // by member: first op it will not post; UINT32_MAX while it stays
  // A member closed in order while we still wait: its last word may be on its way through others.
  Member departed_ = kNoMember;
  Nanos departed_until_ = kNever;
  // A member was lost while only the confirmation of finished operations was open: it never comes.
  Member lost_ = kNoMember;
  Nanos lost_until_ = kNever;
};

}  // namespace mcast
