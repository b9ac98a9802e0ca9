// The progress that the other roots have announced for their small operations. Pure; time is an
// argument.
#pragma once

#include <set>
#include <vector>

#include "base/types.h"

namespace mcast {

// A root sends its small operations in the order of the calls, and announces its progress: with the
// data of every later one, and when it has no more to send. So a receiver that has posted an
// operation learns of its loss from the next datagram of that root; and a late receiver knows what
// it should have in staging, and requests what is missing there many operations at a time, before
// it posts them.
class SentTracker {
 public:
  SentTracker(uint32_t members, Nanos alpha) : roots_(members), alpha_(alpha) {}

  // `root` has sent all its small operations below `end`; `next` is the first that is not posted
  // here. Returns the previously known end.
  Sequence on_sent(Member root, Sequence end, Sequence next, Nanos now);
  Sequence sent(Member root) const { return roots_[root].end; }
  // Time of the latest announcement of `root`.
  Nanos since(Member root) const { return roots_[root].since; }
  // Returns true if operation `sequence` of `root` was requested before it was posted.
  bool asked(Member root, Sequence sequence) const { return sequence < roots_[root].asked; }

  struct Ask {
    Member root;
    Sequence first, end;
  };
  // Operations that are not posted here (`next` is the first such), were sent at least alpha ago
  // and have not been requested: each is returned once. Call only when the socket was seen empty.
  void due(Sequence next, Nanos now, std::vector<Ask>& out);
  // Next time at which due() may return operations.
  Nanos deadline() const { return timers_.empty() ? kNever : timers_.begin()->first; }

 private:
  struct Root {
    Sequence end = 0;    // sent below
    Sequence asked = 0;  // requested below
    Sequence ripe = 0;   // value of `end` when the timer was set
    Nanos since = 0, timer = kNever;
  };
  void arm(Member root, Nanos now);

  std::vector<Root> roots_;
  std::set<std::pair<Nanos, Member>> timers_;
  Nanos alpha_;
};

}  // namespace mcast
