// What the other roots have said about how far they are with their small operations. Pure; time is
// an argument.
#pragma once

#include <set>
#include <vector>

#include "base/types.h"

namespace mcast {

// A root sends its small operations in the order of the calls, and says how far it is: with the
// data of every later one, and when it has nothing more to send. So a receiver that has posted an
// operation learns of its loss from whatever comes next of that root; and one that is late knows
// what it should have in staging, and asks for what is missing there many operations at a time,
// before it posts them.
class SentTracker {
 public:
  SentTracker(uint32_t members, Nanos alpha) : roots_(members), alpha_(alpha) {}

  // `root` has sent all its small operations below `end`; `next` is the first that is not posted
  // here. Returns up to where that was known.
  Sequence on_sent(Member root, Sequence end, Sequence next, Nanos now);
  Sequence sent(Member root) const { return roots_[root].end; }
  // When the latest news of `root` came.
  Nanos since(Member root) const { return roots_[root].since; }
  // Whether operation `sequence` of `root` has been asked for ahead of its post.
  bool asked(Member root, Sequence sequence) const { return sequence < roots_[root].asked; }

  struct Ask {
    Member root;
    Sequence first, end;
  };
  // Operations that are not posted here (`next` is the first such), were sent at least alpha ago
  // and have not been asked for: each is named once. Ask only when the socket was seen empty.
  void due(Sequence next, Nanos now, std::vector<Ask>& out);
  // When due() may have something to say.
  Nanos deadline() const { return timers_.empty() ? kNever : timers_.begin()->first; }

 private:
  struct Root {
    Sequence end = 0;    // sent below
    Sequence asked = 0;  // asked for below
    Sequence ripe = 0;   // sent below when the timer was set
    Nanos since = 0, timer = kNever;
  };
  void arm(Member root, Nanos now);

  std::vector<Root> roots_;
  std::set<std::pair<Nanos, Member>> timers_;
  Nanos alpha_;
};

}  // namespace mcast
