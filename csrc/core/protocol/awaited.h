// Who is waited for by what only two members know of, and since when nothing was heard of each: for
// those that are not watched all the time (liveness.h). Whoever is waited for gets a word each
// quarter of the limit, and who is silent for longer than the limit is given up. Pure; time is an
// argument.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/types.h"

namespace mcast {

class Awaited {
 public:
  // limit: silence that counts as death.
  explicit Awaited(Nanos limit);

  // Somebody is waited for from now on; nobody any more.
  void begin(Nanos now);
  void end();
  // Call on every poll: a gap of ours (stopped process, descheduled) is credited to everybody.
  void on_poll(Nanos now);
  // A frame arrived from this member. Nothing is expected of it.
  void heard(Member m, Nanos now);
  void forget(Member m) { since_.erase(m); }

  // Words are due: ask_all() says to whom they go now, which is who is waited for until the next.
  bool due(Nanos now) const { return now >= next_; }
  void ask_all(const std::vector<Member>& members, Nanos now);
  // Who has been silent beyond the limit, and for how long. Ask only after an empty poll.
  std::optional<std::pair<Member, Nanos>> silent(Nanos now) const;
  Nanos deadline() const;

 private:
  const Nanos limit_, interval_;
  Nanos next_ = kNever, last_poll_ = 0;
  std::map<Member, Nanos> since_;  // heard last, or asked first
};

}  // namespace mcast
