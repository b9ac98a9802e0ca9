// Detects that this member's multicast address is flooded, so that little of the group's data still
// arrives by it. Results stay exact under a flood, since losses are repaired, but operations are
// very slow. Checks once a second the datagrams that the lane has received and the way in which the
// group's chunks have arrived. Pure.
#pragma once

#include "base/types.h"

namespace mcast {

class FloodWatch {
 public:
  // Totals, all since the same moment.
  struct Totals {
    uint64_t verified = 0;  // datagrams of the lane
    uint64_t useless = 0;   // datagrams that were refused, arrived again, or arrived too late
    uint64_t live = 0;      // chunks of the group that arrived by multicast
    uint64_t repaired = 0;  // chunks that arrived by repair
    uint64_t foreign = 0;   // useless ones that other groups may have sent to this address
  };
  enum class Seen : uint8_t {
    kNothing,  // no window has ended, or the last check was too long ago
    kCalm,
    kNoise,    // more than 90 % of a window's datagrams were useless and not another group's
    kFlooded,  // also, most data came by repair in several consecutive windows; counting restarts
  };
  Seen look(const Totals& totals, Nanos now);
  // Returns true if look() would not simply return kNothing.
  bool due(Nanos now) const { return since_ == kNever || now - since_ >= kWindow; }
  // Useless datagrams per second, in the last window.
  uint64_t rate() const { return rate_; }

  static constexpr Nanos kWindow = kSecond;
  static constexpr int kWindows = 5;
  static constexpr uint64_t kLeast = 1000;  // useless datagrams of a window; fewer do no harm
  // Useless datagrams for each verified one and each repaired chunk. A repaired chunk may arrive
  // late, and again when it is repeated, but not that often.
  static constexpr uint64_t kTimes = 9;

 private:
  Totals last_;
  Nanos since_ = kNever;
  uint64_t rate_ = 0;
  int windows_ = 0;  // consecutive ones
};

}  // namespace mcast
