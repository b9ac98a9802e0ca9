// Sleeping on one lane: what this rank waits for, and waking the peers that wait for this rank.
//
// A rank that is about to sleep writes its needs into its state, looks once more, and sleeps; a
// peer that publishes or consumes then looks at the needs. All of it in one total order (seq_cst),
// so one of the two always sees the other. A peer that meets a need takes it away and wakes once.
#pragma once

#include "host/lane_view.h"
#include "host/port.h"

namespace mcast {

// Whoever drives the lane.
class Needs {
 public:
  // `port` outlives this.
  Needs(const LaneView& lane, HostPort& port) : lane_(lane), port_(port) {}

  // Waits for `data`, unless its waiter is kNone, and until all ranks have consumed `room` rounds,
  // unless that is kNoRoom. False: one of the two is there, or the group has failed; nothing is
  // armed then.
  static constexpr uint64_t kNoRoom = UINT64_MAX;
  bool arm(const HostNeed& data, uint64_t room, HostWaiter waiter);
  void disarm();

  // This rank has published or consumed a round: wakes those whose need is met now.
  void wake_for_published();
  void wake_for_consumed();

 private:
  bool met(const HostNeed& data) const;
  template <typename Met>
  void wake(std::atomic<uint64_t> RankState::*need_of, Met met);

  const LaneView lane_;
  HostPort& port_;
};

}  // namespace mcast
