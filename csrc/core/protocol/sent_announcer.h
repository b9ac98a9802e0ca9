// Decides when a root announces its progress in its small operations. Pure; time is an argument.
#pragma once

#include "base/types.h"
#include "protocol/announce.h"

namespace mcast {

// While a root continues to send, its data shows its progress. When it stops it announces it a few
// times by multicast, then once by stream, which is reliable and is stored by ranks that have not
// posted: after that it is silent until it sends again, however late a rank is.
class SentAnnouncer {
 public:
  // All small operations of this root below `end` have been sent.
  void on_sent(Sequence end, Nanos now) {
    end_ = end;
    announced_ = 0;
    next_ = now + kDelay;
  }
  // Operations below `end` are complete everywhere: no announcement is needed any more.
  void on_released(Sequence end) {
    if (end >= end_) next_ = kNever;
  }
  Sequence end() const { return end_; }

  Announce due(Nanos now) {
    if (now < next_) return Announce::kNo;
    if (announced_ == kMulticasts) {
      next_ = kNever;
      return Announce::kStream;
    }
    next_ = now + (kDelay << ++announced_);
    return Announce::kMulticast;
  }
  Nanos deadline() const { return next_; }

  static constexpr Nanos kDelay = kMilli;  // after the last data; doubles
  static constexpr int kMulticasts = 3;

 private:
  Sequence end_ = 0;
  int announced_ = 0;
  Nanos next_ = kNever;
};

}  // namespace mcast
