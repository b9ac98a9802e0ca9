// Flood: what this member does about a flood of its multicast address. On multicast it notices that
// the flood does harm, and PathSwitch takes the group to the ring. On the ring it leaves the
// address, so that switches prune the flood, and joins again when the group asks whether multicast
// reaches everybody: it then listens for a while, and is against multicast as long as the flood is
// there.
//
// Leaving is this member's own affair: nothing is multicast on the ring but probes, which follow
// the question, and aborts, which also go by stream.
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

  // With every turn in which something is under way; on multicast, unless no other path is allowed.
  // True: the address is flooded, and the group suffers from it.
  bool noticed(Nanos now);
  // It is flooded, as this member has noticed or another group of the lane that uses it: it is left
  // as soon as the group is on the ring.
  void believe() { believed_ = true; }
  // The group is on the ring now, or on multicast again.
  void on_path(bool ring, Nanos now);
  // With every turn on the ring: leaves the address if it is flooded, whoever noticed.
  void leave_if_noisy(Nanos now);

  // A round of asking begins, by whoever has left.
  void listen(Nanos now);
  // It has not listened for long enough yet to say anything.
  bool listening(Nanos now);
  Nanos deadline() const { return listen_until_; }
  // What speaks against multicast here; empty: nothing.
  std::string objection(Nanos now) const;
  // The round is over; `multicast`: with success.
  void end_round(bool multicast, Nanos now);
  // There will be no round any more.
  void stop() { listen_until_ = kNever; }

  static constexpr Nanos kListen = 200 * kMilli;
  // Of what came when it left: that much still comes, so the flood goes on.
  static constexpr uint64_t kPart = 4;

 private:
  FloodWatch::Totals totals() const;
  void leave(Nanos now);

  GroupContext& g_;
  FloodWatch watch_;
  bool believed_ = false, left_ = false;
  uint64_t rate_ = 0;  // useless datagrams per second when it left
  // While it is away: what the host ignores comes from elsewhere. Since when, and what by then.
  Nanos away_since_ = 0;
  uint64_t ignored_before_ = 0;
  // While it listens again: since when, to what had come by then, until when; what the host ignored
  // in a second before.
  Nanos listen_since_ = 0, listen_until_ = kNever;
  uint64_t heard_before_ = 0, elsewhere_ = 0;
  Status joined_;
};

}  // namespace mcast
