// Flood: this member's reaction to a flood of its multicast address. On the multicast path it
// detects that the flood does harm, and PathSwitch moves the group to the ring. On the ring path it
// leaves the address, so that switches prune the flood. It joins again when the group checks
// whether multicast reaches all members: it then listens for a while, and objects to multicast as
// long as the flood continues.
//
// Leaving affects only this member: on the ring path, only probes and aborts are multicast. Probes
// follow the question, and aborts are also sent by stream.
//
// Threads: the lane's.
#pragma once

#include <string>

#include "collective/group_context.h"
#include "protocol/flood_watch.h"

namespace mcast {

class Flood {
 public:
  explicit Flood(GroupContext& context) : g_(context) {}

  // Called by every progress() with work in flight, on the multicast path, unless no other path is
  // allowed. Returns true if the address is flooded and the group suffers from it.
  bool noticed(Nanos now);
  // The address is flooded, as detected by this member or by another group of the lane that uses
  // it. This member leaves it as soon as the group is on the ring.
  void believe() { believed_ = true; }
  // The group has moved to the ring, or back to multicast.
  void on_path(bool ring, Nanos now);
  // Called by every progress() on the ring: leaves the address if anyone has found it flooded.
  void leave_if_noisy(Nanos now);

  // A round of the path check begins: a member that left the address joins it again.
  void listen(Nanos now);
  // Returns true while this member has not listened for long enough to answer.
  bool listening(Nanos now);
  Nanos deadline() const { return listen_until_; }
  // Reason why this member objects to multicast; empty if it does not object.
  std::string objection(Nanos now) const;
  // The round is over. `multicast`: the group goes back to multicast.
  void end_round(bool multicast, Nanos now);
  // There will be no further round.
  void stop() { listen_until_ = kNever; }

  static constexpr Nanos kListen = 200 * kMilli;
  // The flood goes on if at least 1/kPart of the rate that was measured before leaving still
  // arrives.
  static constexpr uint64_t kPart = 4;

 private:
  FloodWatch::Totals totals() const;
  void leave(Nanos now);

  GroupContext& g_;
  FloodWatch watch_;
  bool believed_ = false, left_ = false;
  uint64_t rate_ = 0;  // useless datagrams per second when it left
  // While not joined, datagrams that the host ignores have another origin. Time of leaving, and
  // count then.
  Nanos away_since_ = 0;
  uint64_t ignored_before_ = 0;
  // While listening again: start, count of datagrams at the start, end; and the rate of datagrams
  // that the host ignored per second before the start.
  Nanos listen_since_ = 0, listen_until_ = kNever;
  uint64_t heard_before_ = 0, elsewhere_ = 0;
  Status joined_;
};

}  // namespace mcast
