// Sleeping on one lane: publishes the needs of this rank, and wakes the peers that wait for it.
//
// A rank that is about to sleep writes its needs into its state, checks once more, and sleeps; a
// peer that publishes or consumes then checks the needs. All of this is in one total order
// (seq_cst), so at least one of the two sees the other. A peer that meets a need clears it and
// wakes the rank once.
#pragma once

#include "shm/lane_view.h"
#include "shm/port.h"

namespace mcast {

// Used by the driver of the lane.
class Needs {
 public:
  // `port` outlives this.
  Needs(const LaneView& lane, HostPort& port) : lane_(lane), port_(port) {}

  // Arms a wait for `data`, unless its waiter is kNone, and until all ranks have consumed `room`
  // rounds, unless that is kNoRoom. Returns false, with nothing armed, if one of the two is
  // available, or the group has failed.
  static constexpr uint64_t kNoRoom = UINT64_MAX;
  bool arm(const HostNeed& data, uint64_t room, HostWaiter waiter);
  void disarm();

  // Called after this rank has published or consumed a round: wakes ranks whose need is met now.
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
