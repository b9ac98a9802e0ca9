// When a root says how far it is with its small operations. Pure; time is an argument.
#pragma once

#include "base/types.h"
#include "protocol/announce.h"

namespace mcast {

// While a root goes on sending, its data says it. When it stops it says so a few times by
// multicast, then once by stream, which is reliable and is remembered by who has not posted: after
// that it is silent until it sends again, however long somebody is late.
class SentAnnouncer {
 public:
  // All own small operations below `end` have been sent.
  void on_sent(Sequence end, Nanos now) {
    end_ = end;
    announced_ = 0;
    next_ = now + kDelay;
  }
  // Operations below `end` are complete everywhere: nobody needs to know any more.
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

  static constexpr Nanos kDelay = kMilli;  // from the last data; doubles
  static constexpr int kMulticasts = 3;

 private:
  Sequence end_ = 0;
  int announced_ = 0;
  Nanos next_ = kNever;
};

}  // namespace mcast
