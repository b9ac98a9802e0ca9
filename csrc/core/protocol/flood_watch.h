// Is this member's multicast address flooded, so that little of the group's data still comes by it?
// Results stay exact under a flood, since what is lost is repaired, but at a crawl. One look a
// second, at what the lane has received and how the group's chunks have come. Pure.
#pragma once

#include "base/types.h"

namespace mcast {

class FloodWatch {
 public:
  // All since some beginning.
  struct Totals {
    uint64_t verified = 0;  // datagrams of the lane
    uint64_t useless = 0;   // those that were refused, or came again, or too late
    uint64_t live = 0;      // chunks of the group that came by multicast
    uint64_t repaired = 0;  // and by repair
    uint64_t foreign = 0;   // of the useless ones, what other groups may have sent at this address
  };
  enum class Seen : uint8_t {
    kNothing,  // no window has ended, or nobody looked for long
    kCalm,
    kNoise,    // more than 90 % of what came in the window was of no use and no other group's
    kFlooded,  // and in several windows in a row most data came by repair; counted anew
  };
  Seen look(const Totals& totals, Nanos now);
  // Whether look() would do more than return kNothing.
  bool due(Nanos now) const { return since_ == kNever || now - since_ >= kWindow; }
  // Useless datagrams per second, in the last window.
  uint64_t rate() const { return rate_; }

  static constexpr Nanos kWindow = kSecond;
  static constexpr int kWindows = 5;
  static constexpr uint64_t kLeast = 1000;  // useless datagrams of a window; fewer harm nobody
  // Useless ones for each that was verified and each chunk that was repaired. A chunk that has been
  // repaired may come late, and again when it is repeated, but not that often.
  static constexpr uint64_t kTimes = 9;

 private:
  Totals last_;
  Nanos since_ = kNever;
  uint64_t rate_ = 0;
  int windows_ = 0;  // in a row
};

}  // namespace mcast
